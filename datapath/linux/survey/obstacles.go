// Package survey says what of others' settings keeps a node from working, and what to do
// about each: their packet filters, those of nftables (foreign.go) and of
// iptables-legacy (legacy.go), which may drop what endpoints send and get, and their
// routing rules and routes (astray.go), which may lead it elsewhere.
//
// It changes nothing. passages.go says where packets pass, packet.go follows one through
// the rules of a chain, routing.go decides as a kernel does where one goes, and
// decider.go does so for many. Start at Subject.Obstacles.
package survey

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
)

// Subject is a node, and what it is to do.
type Subject struct {
	Plan *plan.Plan
	Node *rtnl.Node
	// Peers are the VTEPs that may send through each tunnel, by its name.
	Peers map[string]map[netip.Addr]bool
}

// Obstacles says which chains of others drop what endpoints send and get, or
// the tunnel packets that carry it, which routing rules and routes lead it astray,
// which setting drops it, and what has a gateway's address; see datapath.Surveyor. What it cannot tell it leaves
// out: it follows the rules of a chain as such a packet would meet them, and where
// one that it does not understand might accept the packet, it is silent. It looks
// at the calling thread's network namespace.
func (s *Subject) Obstacles() ([]string, error) {
	ways, tunnel4 := s.passages()
	dropping, err := droppingChains(s.Node.Stamps, ways)
	legacy, legacyErr := droppingLegacy(ways)
	err, found := errors.Join(err, legacyErr), append(dropping, legacy...)
	for _, t := range s.travels() {
		r, routingErr := readRouting(s.Node.Stamps, t.is4, t.concerns())
		if err = errors.Join(err, routingErr); routingErr == nil {
			found = append(found, r.astray(t)...)
		}
	}
	if tunnel4 {
		why, strictErr := strictFilter()
		if err = errors.Join(err, strictErr); why != "" {
			found = append(found, why)
		}
	}
	found = append(found, s.gatewaysElsewhere()...)
	slices.Sort(found)
	return slices.Compact(found), err
}

// gatewaysElsewhere says which other interfaces have the gateways' addresses. One may have been
// Weft's own and was renamed while no agent ran: that is of no use to anybody. Any other may be
// what connects the node.
func (s *Subject) gatewaysElsewhere() (found []string) {
	for _, pool := range s.Plan.Local.Pools {
		link := s.Node.Holding(pool.Gateway)
		if link == 0 || s.Node.Bridge == 0 {
			continue
		}
		name := linkName(link)
		mend := fmt.Sprintf("delete it, which was Weft's own and has another name now (ip link del %s)", name)
		if !rtnl.WasBridge(link, s.Plan) {
			mend = "take the address from it"
			for _, a := range linkAddresses(link) {
				if a.Addr() == pool.Gateway {
					mend += fmt.Sprintf(" (ip address del %s dev %s)", a, name)
				}
			}
		}
		found = append(found, fmt.Sprintf("interface %s has the address %s, which %s alone should have: programs that listen at each address of the node fail; %s",
			name, pool.Gateway, s.Node.Stamps.Bridge, mend))
	}
	return found
}

// droppingLegacy says which chains of iptables-legacy drop packets.
func droppingLegacy(ways []passage) (found []string, _ error) {
	var errs []error
	for _, is6 := range []bool{false, true} {
		f := legacyFamilies[is6]
		if !slices.ContainsFunc(ways, func(w passage) bool { return w.packet.ipv6 == is6 }) {
			continue
		}
		used, err := f.inUse()
		errs = append(errs, err)
		for _, name := range used {
			t, err := f.read(name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			for _, place := range inOrder {
				c, ok := t.hooks[hookNumbers[place]]
				if !ok {
					continue
				}
				end := fates{chain: fmt.Sprintf("chain %s of the table %s of %s", iptablesChains[place], name, f.command),
					mend: func(w *passage) string { return w.mendIptables(f.command, name) }}
				for _, w := range ways {
					if w.place != place || w.packet.ipv6 != is6 {
						continue
					}
					fate, err := w.at(nftables.ChainPriority(legacyPriorities[name])).through(t, strconv.FormatUint(uint64(c.begin), 10))
					errs = append(errs, err)
					if fate == isDropped || fate == goesOn && c.drops {
						end.drops(w)
					}
				}
				found = append(found, end.lines()...)
			}
		}
	}
	return found, errors.Join(errs...)
}

// droppingChains says which chains of others drop packets.
func droppingChains(own stamps.Stamps, ways []passage) (found []string, _ error) {
	if len(ways) == 0 {
		return nil, nil
	}
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	devices, err := chainDevices()
	if err != nil {
		return nil, err
	}
	var errs []error
	tables := map[nftables.Table]*nftTable{}
	for _, c := range chains {
		if c.Hooknum == nil || c.Priority == nil || slices.Contains(own.Tables(), c.Table.Name) {
			continue
		}
		place, ok := placeOf(c.Table.Family, *c.Hooknum)
		if !ok {
			continue
		}
		table := tables[*c.Table]
		if table == nil {
			table = &nftTable{conn: conn, table: c.Table, known: map[string][][]expr.Any{}, sets: map[string]finder{}}
			tables[*c.Table] = table
		}
		end := fates{chain: fmt.Sprintf("chain %s of nftables table %s %s", c.Name, familyNames[c.Table.Family], c.Table.Name),
			mend: func(w *passage) string { return w.mendNftables(c) }}
		for _, w := range ways {
			if w.place != place || !w.meets(c) {
				continue
			}
			p := w.at(*c.Priority)
			if place == ingress || place == egress {
				if p, ok = w.on(devices[chainKey{c.Table.Family, c.Table.Name, c.Name}]); !ok {
					continue
				}
			}
			if c.Table.Family == nftables.TableFamilyNetdev {
				p.meta[expr.MetaKeyNFPROTO] = values{wholly([]byte{unix.NFPROTO_NETDEV})}
			}
			fate, err := p.through(table, c.Name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if fate == isDropped || fate == goesOn && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				end.drops(w)
			}
		}
		found = append(found, end.lines()...)
	}
	return found, errors.Join(errs...)
}

// fates are what a chain drops.
type fates struct {
	// chain is the chain for people, and mend returns how it lets packets through.
	chain string
	mend  func(*passage) string
	// tunnel is a way of tunnel packets on which it drops, and pods are those of
	// what endpoints send and get, by whether it is what they get.
	tunnel *passage
	pods   map[bool]*passage
}

func (f *fates) drops(w passage) {
	if w.port != 0 {
		f.tunnel = &w
		return
	}
	if f.pods == nil {
		f.pods = map[bool]*passage{}
	}
	f.pods[w.incoming] = &w
}

func (f *fates) lines() (lines []string) {
	if w := f.tunnel; w != nil {
		what := map[bool]string{true: "the tunnel packets that come from other nodes", false: "the tunnel packets to other nodes"}[w.incoming]
		state := ""
		if w.state == expr.CtStateBitUNTRACKED && (w.place == input || w.place == output) {
			state = ", in connection tracking's state untracked"
		}
		lines = append(lines, fmt.Sprintf("%s drops %s (UDP port %d%s); let them through: %s", f.chain, what, w.port, state, f.mend(w)))
	}
	sent, got := f.pods[false], f.pods[true]
	what := "what pods send and get"
	switch {
	case got == nil:
		what = "what pods send to other nodes"
	case sent == nil:
		what = "what pods get from other nodes"
	}
	if w := cmp.Or(sent, got); w != nil {
		mend := f.mend(w)
		if other := cmp.Or(got, sent); f.mend(other) != mend {
			mend += "; " + f.mend(other)
		}
		lines = append(lines, fmt.Sprintf("%s drops %s; let it through: %s", f.chain, what, mend))
	}
	return lines
}

// mendNftables lets the packets through a chain of nftables.
func (w *passage) mendNftables(c *nftables.Chain) string {
	command := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "iptables", nftables.TableFamilyIPv6: "ip6tables"}[c.Table.Family]
	_, theirs := legacyPriorities[c.Table.Name]
	switch {
	case command != "" && theirs && c.Name == iptablesChains[w.place]:
		return w.mendIptables(command, c.Table.Name)
	case c.Table.Name == "firewalld" && w.port != 0 && w.place == input:
		return fmt.Sprintf("firewall-cmd --permanent --add-port=%d/udp && firewall-cmd --reload", w.port)
	case c.Table.Name == "firewalld" && w.port == 0:
		return "firewall-cmd --permanent --zone=trusted --add-interface=weft+ && firewall-cmd --reload"
	}
	rule := fmt.Sprintf("nft insert rule %s %s %s", familyNames[c.Table.Family], c.Table.Name, c.Name)
	if w.chosen == "" {
		return fmt.Sprintf("%s iifname 'weft*' accept; %[1]s oifname 'weft*' accept", rule)
	}
	return fmt.Sprintf("%s %s accept", rule, w.chosen)
}

// mendIptables lets the packets through a chain of a table of iptables, with a
// command of the name.
func (w *passage) mendIptables(command, table string) string {
	if table != "filter" {
		command += " -t " + table
	}
	if w.iptables == "" {
		return fmt.Sprintf("%[1]s -I FORWARD -i weft+ -j ACCEPT; %[1]s -I FORWARD -o weft+ -j ACCEPT", command)
	}
	return fmt.Sprintf("%s -I %s %s -j ACCEPT", command, iptablesChains[w.place], w.iptables)
}

// strictFilter says why the kernel will drop packets that took a tunnel there
// and another way back, if it will.
func strictFilter() (string, error) {
	v, err := sysctl.Get("ipv4/conf/all/rp_filter")
	if err != nil || v != "1" {
		return "", err
	}
	return "net.ipv4.conf.all.rp_filter is 1, so that packets between pods and other nodes' addresses may be dropped: set it to 0 or 2", nil
}
