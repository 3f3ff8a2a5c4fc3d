package linux

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// What frontends and backends count is elements of two sets, which come with the first
// packet that they count. So who has many Services pays for those alone that are used, the
// maps that packets are asked about stay as small as they are, and what changes in these leaves
// the counts alone. A connection that is given a backend is counted as it is given it, once. What a policy or a limit
// drops behind that is no connection, and is given a backend and counted packet by packet. What
// is refused or dropped as there is no backend is counted packet by packet, too, on the way to where it is refused or
// dropped. Nothing depends on that a count could be written.
//
// A count ends with what it is of, so that nobody is told of another's that had the address
// before, as endcounts.go says, and by itself a day after what it last counted.
const (
	countsPrefix = "counts" // outcome, address, protocol, port -> packets
	takesPrefix  = "takes"  // set, backend -> connections

	// countsLast is for how long an element is kept that counts no more.
	countsLast = 24 * time.Hour
)

// mostCounts is how many elements each of these sets may have. Where there are as many, what comes
// is not counted, and nothing else is different. Only tests set it.
var mostCounts uint32 = 1 << 20

// outcome is what frontends count apart, and from which side the packets came.
type outcome uint32

// The outcomes. That of what comes from outside has outcomeOutside as well.
const (
	outcomeGiven outcome = iota + 1
	outcomeRefused
	outcomeSilenced
	outcomeForOthers
	outcomeOutside outcome = 1 << 8
)

// from is the outcome for packets from a side.
func (o outcome) from(side plan.Scope) outcome {
	if side == plan.Outside {
		return o | outcomeOutside
	}
	return o
}

// registerCount is where the key of a frontend's count begins, of seven words at most.
const registerCount = unix.NFT_REG32_00

// countSet is a set of counts.
type countSet struct {
	name string
	is4  bool
	// takes says that it is one of backends.
	takes bool
	// like is the set without elements.
	like nft.Set
}

// setsOfCounts are all of them.
func setsOfCounts() (all []countSet) {
	for _, is4 := range interval.Families {
		like := nft.Set{Concat: true, Timeout: true, Dynamic: true, Size: mostCounts, Lasts: countsLast}
		like.Key = nftables.MustConcatSetType(nftables.TypeMark, nft.AddressType(is4), nftables.TypeInetProto, nftables.TypeInetService)
		all = append(all, countSet{name: countsPrefix + suffix(is4), is4: is4, like: like})
		like.Key = nftables.MustConcatSetType(typeSet, nft.AddressType(is4), nftables.TypeInetService)
		all = append(all, countSet{name: takesPrefix + suffix(is4), is4: is4, takes: true, like: like})
	}
	return all
}

// read returns what there is of the set in a table, and how many packets each element has counted.
// Where there are no Services it is nothing.
func (s countSet) read(table string) (nft.Elements, map[nft.Element]uint64, error) {
	all, packets, err := nft.ReadElements(s.like.In(table, s.name))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil, nil
	}
	return all, packets, err
}

// countIn counts in an element of a set, and matches nothing where there is no room for it.
func countIn(set string, key uint32) []expr.Any {
	return []expr.Any{&expr.Dynset{SrcRegKey: key, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}}}
}

// countFrontend counts an outcome of the frontend that a packet is sent to, which there must be.
func countFrontend(o outcome, side plan.Scope, is4 bool) []expr.Any {
	key := nft.Literal(registerCount, word(uint32(o.from(side))))
	return slices.Concat(key, frontendInto(is4, registerCount+1), countIn(countsPrefix+suffix(is4), registerCount))
}

// countRest counts an outcome of the frontend that is all other ports of the address that a packet
// is sent to.
func countRest(o outcome, side plan.Scope, is4 bool) []expr.Any {
	w := words4(is4)
	return slices.Concat(nft.Literal(registerCount, word(uint32(o.from(side)))), nft.AddressInto(is4, false, registerCount+1),
		nft.Literal(registerCount+1+w, blank), nft.Literal(registerCount+2+w, blank), countIn(countsPrefix+suffix(is4), registerCount))
}

// countGiven counts a connection for its frontend, and for the backend right behind the set.
func countGiven(side plan.Scope, is4 bool) []expr.Any {
	return append(countIn(takesPrefix+suffix(is4), registerSet), countFrontend(outcomeGiven, side, is4)...)
}

// behindSet moves a backend, from behind the last word of its set's digest, to right behind the set.
// It does so word by word, as kernels refuse to where it would overlap.
func behindSet(is4 bool) (all []expr.Any) {
	for i := range words4(is4) + 1 {
		all = append(all, &expr.Bitwise{SourceRegister: registerChosen + 1 + i, DestRegister: registerBehind + i, Len: 4, Mask: []byte{0xff, 0xff, 0xff, 0xff}, Xor: make([]byte, 4)})
	}
	return all
}

// counted returns where a rule goes to have a packet counted on its way: to a chain of a name.
func (r *ruleset) counted(name string, count, next []expr.Any) []expr.Any {
	c := r.Chain(name)
	c.Add("count it", count)
	c.Add("go on", next)
	return nft.Decide(nft.GoTo(name))
}

// countKey is a frontend's count as an element.
func countKey(o outcome, k plan.ServiceKey) string { return word(uint32(o)) + frontendKey(k) }

// takesKey is a backend's as an element.
func takesKey(set string, at netip.AddrPort) string { return set + atKey(at) }

// counted says what elements of counts are of.
type counted struct {
	p *plan.Plan
	// sets are the names of the plan's sets, by their digests.
	sets map[string]string
}

func countedBy(p *plan.Plan) counted {
	c := counted{p, map[string]string{}}
	for k := range setsOf(p) {
		c.sets[digestOfName(k.name)] = k.name
	}
	return c
}

// frontend says of which frontend of the plan an element counts what.
func (c counted) frontend(is4 bool, key string) (k plan.ServiceKey, o outcome, ok bool) {
	width := int(4 * words4(is4))
	if len(key) != 4+width+8 {
		return k, 0, false
	}
	o = outcome(binary.NativeEndian.Uint32([]byte(key)))
	k = plan.ServiceKey{Network: plan.DefaultNetwork, Protocol: plan.Protocol(key[4+width]), Port: binary.BigEndian.Uint16([]byte(key[8+width:])), From: plan.Inside}
	if o&outcomeOutside != 0 {
		k.From = plan.Outside
	}
	k.Address, _ = netip.AddrFromSlice([]byte(key[4 : 4+width]))
	for _, k.From = range []plan.Scope{k.From, plan.Anywhere} {
		if _, ok := c.p.Services.Get(k); ok {
			return k, o &^ outcomeOutside, true
		}
	}
	return k, 0, false
}

// backend says of which backend of the plan an element counts connections.
func (c counted) backend(is4 bool, key string) (k plan.BackendKey, ok bool) {
	width := int(4 * words4(is4))
	if len(key) != 16+width+4 {
		return k, false
	}
	k = plan.BackendKey{Network: plan.DefaultNetwork, Set: c.sets[key[:16]], Port: binary.BigEndian.Uint16([]byte(key[16+width:]))}
	k.Address, _ = netip.AddrFromSlice([]byte(key[16 : 16+width]))
	_, ok = c.p.Backends.Get(k)
	return k, ok
}

// knows reports whether an element counts something of the plan.
func (c counted) knows(set countSet, e nft.Element) (is bool) {
	if set.takes {
		_, is = c.backend(set.is4, e.Key)
	} else {
		_, _, is = c.frontend(set.is4, e.Key)
	}
	return is
}

// Counts returns what Services count; see datapath.ServiceCounter.
func (d *DataPlane) Counts() (datapath.ServiceCounts, error) {
	counts := datapath.ServiceCounts{Frontends: map[plan.ServiceKey]datapath.FrontendCount{}, Backends: map[plan.BackendKey]uint64{}}
	p := d.enforced.Load()
	if p == nil || p.Services.Len() == 0 {
		return counts, nil
	}
	by := countedBy(p)
	err := d.counter.each(func(set countSet, e nft.Element, packets uint64) {
		if set.takes {
			if k, ok := by.backend(set.is4, e.Key); ok {
				counts.Backends[k] += packets
			}
			return
		}
		k, o, ok := by.frontend(set.is4, e.Key)
		if !ok {
			return
		}
		f := counts.Frontends[k]
		switch o {
		case outcomeGiven:
			f.Given += packets
		case outcomeRefused:
			f.Refused += packets
		case outcomeSilenced:
			f.Dropped += packets
		case outcomeForOthers:
			f.ForOthers += packets
		}
		counts.Frontends[k] = f
	})
	return counts, err
}
