package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// Whose tags are believed is a part of the policy table, so that it changes with
// verdicts and classes, at once for every packet. A connection's label says what tag
// it began with, believed or not: a later plan judges it by that, too.

// setOfBelieved is a set of what believedSources returns.
func setOfBelieved(is4 bool) nft.Set {
	return nft.Set{Key: nftables.MustConcatSetType(nftables.TypeIFName, nft.AddressType(is4)), Concat: true, Interval: true}
}

// believedSources returns, by sets of the policy table, from which addresses tags are
// believed that come out of tunnels: those behind peers whose tags are. A tunnel's device
// may still have its name of one of the others, from which this data plane takes over.
func believedSources(stamps Stamps, p *plan.Plan, others ...Stamps) map[string]nft.Elements {
	all := map[string]nft.Elements{believedPrefix + suffix(true): {}, believedPrefix + suffix(false): {}}
	var behind map[netip.Prefix]string
	for _, t := range rtnl.Overlays(stamps, p) {
		if !hasTags(t) {
			continue
		}
		vteps := map[netip.Addr]bool{}
		for _, peer := range p.Peers.All() {
			if end, ok := peer.End(t.Name); ok && peer.CarriesTags {
				vteps[end.VTEP] = true
			}
		}
		if len(vteps) == 0 {
			continue
		}
		if behind == nil {
			behind = behindPeers(p)
		}
		devices := []string{nft.InterfaceKey(t.Device)}
		for _, other := range others {
			devices = append(devices, nft.InterfaceKey(other.TunnelPrefix+t.Name))
		}
		for _, m := range sourcesIn(p, t.Tunnel, behind).members {
			if !vteps[m.vtep] {
				continue
			}
			for _, from := range devices {
				all[believedPrefix+suffix(m.first.Is4())][nft.Element{Key: from + string(m.first.AsSlice()), Last: from + string(m.last.AsSlice())}] = nft.Value{}
			}
		}
	}
	return all
}

// advanceBelieved adds to the changes of sets what changes about whose tags are believed.
func advanceBelieved(stamps Stamps, p, q *plan.Plan, changes plan.Diff, to map[string]nft.Change) {
	if !movesSources(p, q, changes) {
		return
	}
	old, next := believedSources(stamps, p), believedSources(stamps, q)
	for name, all := range next {
		if !maps.Equal(old[name], all) {
			to[name] = nft.Change{Whole: all}
		}
	}
}

// movesSources reports whether changes may alter who is behind which peer, or what
// is believed of it. Neither depends on single endpoints.
func movesSources(p, q *plan.Plan, changes plan.Diff) bool {
	if len(changes.Peers) > 0 {
		return true
	}
	return slices.ContainsFunc(changes.Routes, func(c plan.Change[plan.RouteKey, plan.Route]) bool {
		return c.Old != nil && matters(p, c.Key, *c.Old) || c.New != nil && matters(q, c.Key, *c.New)
	})
}

// believed matches what is from an address of which tags are believed.
func believed(is4 bool, side int) []expr.Any {
	return slices.Concat(nft.InterfaceName(), nft.AddressInto(is4, true, 2), nft.InSet(setOn(believedPrefix+suffix(is4), side)))
}

// labelled matches packets of connections that began with a tag.
func labelled() []expr.Any {
	return append([]expr.Any{&expr.Ct{Key: expr.CtKeyLABELS, Register: 1}}, nft.Masked(labelOf(tagFlag))...)
}

// keyOfLabel fills the key with the class of the tag in a connection's label.
func keyOfLabel() []expr.Any {
	const first = registerClass - labelWord
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyLABELS, Register: registerLookup},
		&expr.Bitwise{SourceRegister: registerLookup, DestRegister: first, Len: labelBytes, Mask: labelOf(tagBits), Xor: make([]byte, labelBytes)},
	}
}

// labelOf is a label of which the word that says a tag is given, and the rest 0.
func labelOf(word []byte) []byte {
	l := make([]byte, labelBytes)
	copy(l[4*labelWord:], word)
	return l
}

// tagIn returns the tag that a label says a connection began with.
func tagIn(label []byte) (t plan.Tag, tagged bool) {
	if len(label) < labelBytes || label[4*labelWord]&tagFlag[0] == 0 {
		return 0, false
	}
	return plan.Tag(binary.BigEndian.Uint32(label[4*labelWord:])) & plan.MaxTag, true
}

// movesBelief reports whether what is believed of tags may differ between two plans, or
// what policies go by instead, so that the class may of which somebody is who began
// a connection with one. Which tag that was only the connection's label says.
func movesBelief(stamps Stamps, p, q *plan.Plan, changes plan.Diff) bool {
	old, next := judge.BeliefOf(p), judge.BeliefOf(q)
	if old.InNobody() && next.InNobody() {
		return false
	}
	for _, c := range p.ClassChanges(q, changes) {
		if a := (plan.Address{Network: c.Key.Network, IP: c.Key.Prefix.Addr()}); (c.Old == nil || c.New == nil) && (old.In(a) || next.In(a)) {
			return true
		}
	}
	if !movesSources(p, q, changes) {
		return false
	}
	return !maps.EqualFunc(believedSources(stamps, p), believedSources(stamps, q), maps.Equal[nft.Elements, nft.Elements])
}

// labelsConnections reports whether the kernel can label connections: it is asked to
// take a rule that does, in a table that goes again at once.
func labelsConnections() (bool, error) {
	err := func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		return probeLabels(conn)
	}()
	for _, unable := range []error{unix.EOPNOTSUPP, unix.EINVAL, unix.ENOENT, unix.ENOSPC, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, unable) {
			return false, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("see whether the kernel labels connections: %w", err)
	}
	return true, nil
}

func probeLabels(conn *nftables.Conn) error {
	t := conn.AddTable(nft.InetTable("weft-probe"))
	c := conn.AddChain(&nftables.Chain{Table: t, Name: "labels"})
	conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: []expr.Any{
		&expr.Immediate{Register: 1, Data: make([]byte, labelBytes)},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: 1, SourceRegister: true},
	}})
	conn.DelTable(t)
	return conn.Flush()
}
