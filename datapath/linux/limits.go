package linux

import (
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// What all on a node share, one endpoint must not fill: the table of tracked
// connections, and that of neighbours. What is counted is connections that
// begin; what belongs to one costs one comparison.
//
// The kernel could count each endpoint's connections for every new one, but it
// looks at all of them for that, so that who has very many costs the node more
// and more. So only their rate is limited here, by which nobody can fill the
// table before it is looked at: census.go says who has too many.
const (
	// An endpoint may begin a beginRate-th part of the table in a second, and a
	// beginBurst-th part at once. Who has saved up for the burst, and is counted
	// when he has just not too many, fills the table only after 20 seconds more:
	// so late may the next count be on a machine that is very busy. With the 262,144
	// connections of a machine with 4 GiB or more it is 8,192 in a second.
	beginRate, beginBurst = 32, 8
	// usualConnections is how many connections Linux tracks on such a machine. It
	// is what is gone by where the kernel does not say before it tracks any.
	usualConnections = 1 << 18

	// hopRate is how many machines on the node's own links an endpoint may try to
	// reach in a second that it has not lately, and hopBurst how many at once. Other
	// nodes do not count. Linux keeps mostNeighbours (gc_thresh3, in arp(7)), and
	// forgets one that does not answer after neighbourTimeout; over IPv6 it keeps the
	// group by which it asks for one, too (RFC 4291, section 2.7.1).
	hopRate, hopBurst = 50, 100
	mostNeighbours    = 1024
	neighbourTimeout  = 3 * time.Second
	// hopTimeout is how long one that was reached counts as known, and is kept alive by
	// what is sent there again; and maxHops how many are known of all endpoints.
	hopTimeout = 3 * time.Second
	maxHops    = 1 << 17

	overSet       = "over"         // interfaces of endpoints that have too many connections
	farOverPrefix = "over-address" // addresses of endpoints elsewhere that have
	beginningSet  = "beginning"    // interface -> rate
	nodesPrefix   = "node-hops"    // next hops of the plan
	hopsPrefix    = "hops"         // interface, next hop: known ones
	newHopsSet    = "new-hops"     // interface -> rate

	beginningsChain = "beginnings"
)

// limits keeps endpoints from filling what the node shares, with two chains: one
// for what may begin a connection (see begins), and one for what passes through
// the node, with the route that it takes.
func (r *ruleset) limits(p *plan.Plan) {
	others := nft.MetaNotEqual(expr.MetaKeyIIFGROUP, nft.HostEndian(r.stamps.Group))
	r.Set(overSet, interfacesOver)
	r.Set(beginningSet, nft.Set{Key: nftables.TypeIFName, Timeout: true, Dynamic: true})
	c := r.Chain(beginningsChain)
	c.Add("what belongs to a connection", tracked(), nft.Decide(nft.Verdict{Kind: expr.VerdictReturn}))
	// A reset in answer to what nobody asked for is such: who is answered must not be
	// able to use up what the endpoint may begin.
	c.Add("what is not tracked", nft.InState(expr.CtStateBitINVALID|expr.CtStateBitUNTRACKED), nft.Decide(nft.Verdict{Kind: expr.VerdictReturn}))
	c.Add("what no endpoint of the node sent", others, nft.Decide(nft.GoTo("far-beginnings")))
	c.Add("who has too many connections begins no more", nft.InterfaceName(), nft.InSet(overSet), r.drop(datapath.TooMany))
	c.Add("nobody begins too many at a time", nft.InterfaceName(),
		above(beginningSet, uint64(max(1, r.connections/beginRate)), uint32(max(1, r.connections/beginBurst))), r.drop(datapath.TooMany))
	far := r.Chain("far-beginnings")
	for _, is4 := range interval.Families {
		name := farOverPrefix + suffix(is4)
		r.Set(name, addressesOver(is4))
		far.Add("who has too many connections begins no more", nft.IsFamily(is4), nft.Address(is4, true), nft.InSet(name), r.drop(datapath.TooMany))
	}

	c = r.Chain("next-hops")
	c.Add("what no endpoint sent", others, nft.Decide(nft.Accept))
	// What tracking takes for nothing looks for neighbours, too.
	c.Add("replies, and what belongs to connections", nft.Established(), nft.Decide(nft.Accept))
	c.Add("to an endpoint", r.isToEndpoint(), nft.Decide(nft.Accept))
	c.Add("through the tunnel", nft.MetaEqual(expr.MetaKeyOIFNAME, []byte(r.stamps.TunnelPrefix)), nft.Decide(nft.Accept))
	for _, is4 := range interval.Families {
		nodes := r.Set(nodesPrefix+suffix(is4), nft.Set{Key: nft.AddressType(is4)})
		for k, route := range p.Routes.All() {
			if route.Way != plan.ToNextHop || k.Prefix.Addr().Is4() != is4 {
				continue
			}
			for _, name := range route.Peers {
				nodes.Elements[nft.Element{Key: string(p.Peer(name).NextHop(k.Prefix.Addr()).AsSlice())}] = nft.Value{}
			}
		}
		c.Add("to a next hop of the plan", nft.IsFamily(is4), nextHop(is4, 1), nft.InSet(nodesPrefix+suffix(is4)), nft.Decide(nft.Accept))
	}
	r.Set(newHopsSet, nft.Set{Key: nftables.TypeIFName, Timeout: true, Dynamic: true})
	for _, is4 := range interval.Families {
		name := hopsPrefix + suffix(is4)
		r.Set(name, nft.Set{Key: nftables.MustConcatSetType(nftables.TypeIFName, nft.AddressType(is4)), Concat: true, Timeout: true, Dynamic: true, Size: maxHops})
		c.Add("to a next hop that is known", nft.IsFamily(is4), nft.InterfaceName(), nextHop(is4, 2), nft.InSet(name), nft.Decide(nft.Accept))
	}
	c.Add("nobody looks for too many at a time", nft.InterfaceName(), above(newHopsSet, hopRate, hopBurst), r.drop(datapath.TooMany))
	for _, is4 := range interval.Families {
		c.Add("then it is known", nft.IsFamily(is4), nft.InterfaceName(), nextHop(is4, 2), []expr.Any{
			&expr.Dynset{SrcRegKey: 1, SetName: hopsPrefix + suffix(is4), Operation: unix.NFT_DYNSET_OP_ADD, Timeout: hopTimeout},
		})
	}
}

// begins adds, to a chain in a hook after connection tracking, the way to the
// limits on connections that begin. What passes through the node is limited
// behind policies (see crossing), and what is for the node itself before them.
// What the node answers in place of passing it on, as it has no hop left or is too
// long, begins nothing and is not limited.
func (r *ruleset) begins(c *nft.Chain) {
	if r.connections > 0 {
		c.Add("what may begin a connection", nft.Jump(beginningsChain))
	}
}

// interfacesOver and addressesOver are sets of those who have too many
// connections.
var interfacesOver = nft.Set{Key: nftables.TypeIFName, Timeout: true}

func addressesOver(is4 bool) nft.Set { return nft.Set{Key: nft.AddressType(is4), Timeout: true} }

// tracked matches, before a packet leaves or is delivered, all but the first of a
// connection. Its state would not do: to the kernel all packets are of a new
// connection until one comes back, and where datagrams go one way only none ever
// does. The first is not confirmed yet, which it is when it leaves or is delivered.
func tracked() []expr.Any {
	const confirmed = 1 << 3 // IPS_CONFIRMED, of the kernel's nf_conntrack_common.h
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: nft.HostEndian(confirmed), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// nextHop loads the address of the neighbour that a packet goes to.
func nextHop(is4 bool, register uint32) []expr.Any {
	if is4 {
		return []expr.Any{&expr.Rt{Register: register, Key: expr.RtNexthop4}}
	}
	return []expr.Any{&expr.Rt{Register: register, Key: expr.RtNexthop6}}
}

// above matches what is more than rate in a second, and burst at once, of what
// has one key in register 1.
func above(set string, rate uint64, burst uint32) []expr.Any {
	return []expr.Any{&expr.Dynset{SrcRegKey: 1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Over: true, Unit: expr.LimitTimeSecond, Burst: burst},
	}}}
}
