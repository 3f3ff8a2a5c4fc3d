package plan

import "iter"

// policy yields the verdicts of a policy and direction, of which least is the
// least key that there can be.
func (v *validator) policy(least VerdictKey) iter.Seq2[VerdictKey, Verdict] {
	return func(yield func(VerdictKey, Verdict) bool) {
		for k, verdict := range v.plan.Verdicts.From(least) {
			if k.Policy != least.Policy || k.Direction != least.Direction || !yield(k, verdict) {
				return
			}
		}
	}
}

// likes checks the entries that name another peer.
func (v *validator) likes(entries iter.Seq2[VerdictKey, Verdict]) {
	for k, verdict := range entries {
		if verdict.Like == 0 {
			continue
		}
		s := about(v, k, verdict)
		if verdict.Allow {
			s.add("it both allows and names another peer")
		}
		if k != Rest(k.Policy, k.Direction, k.Peer) || k.Peer == AnyPeer {
			s.add("only what holds for all else of one peer can be like another")
			continue
		}
		other, ok := v.plan.Verdicts.Get(Rest(k.Policy, k.Direction, verdict.Like))
		if ok && other.Like != 0 {
			if next := v.after(k); next.Policy == k.Policy && next.Direction == k.Direction && next.Peer == k.Peer {
				s.add("peer %s is like another itself, so that nothing else can be said of this one", verdict.Like)
			}
			other, ok = v.plan.Verdicts.Get(Rest(k.Policy, k.Direction, other.Like))
		}
		if !ok || other.Like != 0 {
			s.add("peer %s has no entry that decides about all else, nor has what it is like", verdict.Like)
		}
	}
}

// after returns the key that follows k, the zero key where there is none.
func (v *validator) after(k VerdictKey) VerdictKey {
	for next := range v.plan.Verdicts.From(k) {
		if next != k {
			return next
		}
	}
	return VerdictKey{}
}
