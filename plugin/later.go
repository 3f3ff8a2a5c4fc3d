package plugin

import "slices"

// Debt is that something which an owner asked for is left for later.
type Debt struct {
	// Of is what the layer adds that is to do it, see Layer.
	Of string
	// Owner is a namespace, or "" for the cluster.
	Owner string
	// Slices says that it is done in slices, of which none takes longer than what follows a change at
	// once. Else one thing may take as long as it does.
	Slices bool
}

// Leaving is what leaves some of its work for later, as Gradual, of one layer.
type Leaving interface {
	Waiting() []string
	Advance(owner string)
	Hasty() []string
	Rest(owners map[string]bool)
}

// Later is what the compiler of a layer says, as Gradual, of what is left for later: of its own,
// which is of one kind, and of what is below.
type Later struct {
	// Of and Slices are those of its own Debts.
	Of     string
	Slices bool
	Own    Leaving
	Below  Gradual
}

// Waiting implements Gradual. What is its own comes first.
func (l Later) Waiting() []Debt { return slices.Concat(l.debts(l.Own.Waiting()), l.Below.Waiting()) }

// Hasty implements Gradual.
func (l Later) Hasty() []Debt { return slices.Concat(l.debts(l.Own.Hasty()), l.Below.Hasty()) }

// Advance implements Gradual.
func (l Later) Advance(d Debt) {
	if d.Of == l.Of {
		l.Own.Advance(d.Owner)
	} else {
		l.Below.Advance(d)
	}
}

// Rest implements Gradual.
func (l Later) Rest(debts map[Debt]bool) {
	owners := make(map[string]bool)
	for d := range debts {
		if d.Of == l.Of {
			owners[d.Owner] = true
		}
	}
	l.Own.Rest(owners)
	l.Below.Rest(debts)
}

func (l Later) debts(owners []string) []Debt {
	debts := make([]Debt, len(owners))
	for i, owner := range owners {
		debts[i] = Debt{l.Of, owner, l.Slices}
	}
	return debts
}
