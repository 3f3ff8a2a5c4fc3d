package linux

import (
	"net/netip"

	"github.com/google/nftables"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// Those whom a frontend is for are a list of ranges of addresses. Its elements begin with a digest, which the
// frontend's element of guards says.
//
// The kernel keeps them in a tree. While a transaction goes on, what comes with it is among what is there: no packet
// finds it, but one that passes it on the way down does not find what is behind it either. So a list
// that changes is another one, with another digest: it comes before the transaction that has frontends speak
// of it, as some kernels show it a while later, and the former one goes behind that.

// typeAdmitted is an address behind the digest of those who have it, as one number. So the kernel keeps them in a tree. Of a
// set of concatenations it would look through all intervals for each one that goes, while nobody else may change a table: of ten
// thousand, 200 that go would take four seconds.
func typeAdmitted(is4 bool) nftables.SetDatatype {
	number := nftables.TypeInteger
	number.Bytes = typeSet.Bytes + nft.AddressType(is4).Bytes
	return number
}

// list is who may send somewhere: ranges of addresses of one family, in order, and what the table calls them.
type list struct {
	digest string
	ranges []interval.Range[bool]
}

// lists are those of a plan, by their names and families. Each is made when somebody asks for it.
type lists struct {
	plan *plan.Plan
	made map[setKey]list
}

func listsOf(p *plan.Plan) lists { return lists{p, map[setKey]list{}} }

// get returns a list. Its digest is that of its name and of all that is in it. Of ranges that overlap the kernel takes
// but one.
func (l lists) get(name string, is4 bool) list {
	of := setKey{name, is4}
	if made, known := l.made[of]; known {
		return made
	}
	prefixes := map[netip.Prefix]bool{}
	for k := range l.plan.Sources.From(plan.SourceKey{Network: plan.DefaultNetwork, Name: name}) {
		if k.Network != plan.DefaultNetwork || k.Name != name {
			break
		}
		prefixes[k.Prefix] = true
	}
	made := list{ranges: interval.FlattenFamily(prefixes, is4)}
	text := []byte(name + "\x00")
	for _, r := range made.ranges {
		text = append(append(text, r.First.AsSlice()...), r.Last.AsSlice()...)
	}
	made.digest = digestOfName(string(text))
	l.made[of] = made
	return made
}

// elements yields those of the ranges: of each its first key, and the one behind its last.
func (l list) elements(yield func(nft.Element) bool) {
	for _, r := range l.ranges {
		behind := []byte(l.digest + string(r.Last.AsSlice()))
		for at := len(behind) - 1; at >= 0; at-- {
			if behind[at]++; behind[at] != 0 {
				break
			}
		}
		if !yield(nft.Element{Key: l.digest + string(r.First.AsSlice())}) || !yield(nft.Element{Key: string(behind), End: true}) {
			return
		}
	}
}

// guardElements puts for whom a frontend is, where it is for some alone.
func guardElements(k plan.ServiceKey, s plan.Service, of lists, put putElement) {
	if s.Sources == "" || k.Protocol == plan.AnyProtocol {
		return
	}
	is4 := k.Address.Is4()
	for _, side := range sidesOf(k) {
		put(sideOf(guardsPrefix, side, is4), nft.Element{Key: frontendKey(k)}, nft.Value{Data: blank + of.get(s.Sources, is4).digest})
	}
}

// guard notes that a frontend comes, or goes, that is for those of a list alone.
func (s *services) guard(k plan.ServiceKey, of plan.Service, comes bool) {
	switch guarded := s.guarded[of.Sources]; {
	case of.Sources == "":
	case comes && guarded == nil:
		s.guarded[of.Sources] = map[plan.ServiceKey]bool{k: true}
	case comes:
		guarded[k] = true
	default:
		if delete(guarded, k); len(guarded) == 0 {
			delete(s.guarded, of.Sources)
		}
	}
}

// relist has the frontends of lists that change speak of what these are next, and returns the elements that come before
// that, and those that go behind it, by set. Frontends that are new, or for others than before, are not its concern.
func (s *services) relist(was, is lists, changes []plan.Change[plan.SourceKey, plan.Source], edit setEdits) (come, gone map[string]nft.Change) {
	come, gone = map[string]nft.Change{}, map[string]nft.Change{}
	names := map[string]bool{}
	for _, c := range changes {
		names[c.Key.Name] = true
	}
	for name := range names {
		for _, is4 := range interval.Families {
			before, now := was.get(name, is4), is.get(name, is4)
			if before.digest == now.digest {
				continue
			}
			var comes, goes []reconcile.Change[nft.Element, nft.Value]
			for e := range now.elements {
				comes = append(comes, reconcile.Change[nft.Element, nft.Value]{Key: e, New: &nft.Value{}})
			}
			for e := range before.elements {
				goes = append(goes, reconcile.Change[nft.Element, nft.Value]{Key: e, Old: &nft.Value{}})
			}
			set := admittedPrefix + suffix(is4)
			come[set] = nft.Change{Elements: append(come[set].Elements, comes...)}
			gone[set] = nft.Change{Elements: append(gone[set].Elements, goes...)}
		}
		for k := range s.guarded[name] {
			old, _ := was.plan.Services.Get(k)
			if next, stays := is.plan.Services.Get(k); stays && next.Sources == name && old.Sources == name {
				guardElements(k, old, was, edit.remove)
				guardElements(k, next, is, edit.add)
			}
		}
	}
	return come, gone
}
