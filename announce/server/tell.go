package server

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/internal/printable"
)

// perLine is of how many addresses one line of the log speaks.
const perLine = 100

// note has something be logged of addresses, behind what there is to do: who reads the log may have the node wait.
func (s *Server) note(what string, l *elected, addresses []netip.Addr) {
	for some := range slices.Chunk(addresses, perLine) {
		s.notes = append(s.notes, func() { s.Log.Info(what, "addresses", some, "link", l.name) })
	}
}

// log logs what is to be.
func (s *Server) log() {
	for _, note := range s.notes {
		note()
	}
	s.notes = nil
}

// tell tells what the node answers for.
func (s *Server) tell() {
	var owned []netip.Addr
	refused := 0
	for _, l := range s.links {
		owned = append(owned, l.machine.Owned()...)
		refused += len(l.machine.Refused())
	}
	slices.SortFunc(owned, netip.Addr.Compare)
	s.mu.Lock()
	same := slices.Equal(s.state, owned)
	s.state, s.refused = owned, refused
	s.mu.Unlock()
	if !same {
		s.Changed()
	}
}

// complain tells what is wrong.
func (s *Server) complain() {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		l := s.links[name]
		if l.err != nil && l.port == nil {
			words = append(words, l.err.Error())
		}
		if l.down() {
			words = append(words, fmt.Sprintf("interface %s is down, and this node answers for no address on its link: see its cable and its switch, or what has set it down", l.name))
		}
		words = append(words, s.trouble(l)...)
	}
	if s.holdErr != nil {
		words = append(words, s.holdErr.Error())
	}
	if text := strings.Join(words, "; "); text != s.said {
		s.said = text
		s.Problem(text)
	}
}

// trouble is what keeps the node from answering on a link as it should.
func (s *Server) trouble(l *elected) (words []string) {
	if l.named {
		words = append(words, fmt.Sprintf("on the link of %s another machine, %s, says under this node's name what it answers for: give each node a name of its own", l.name, l.namesake))
	}
	// One that is lost now and then is made up for by the next.
	if l.unsaid != nil && s.now-l.unsaidAt >= s.Timing.Silence && len(l.machine.Owned()) > 0 {
		words = append(words, fmt.Sprintf("other nodes do not hear for which addresses this node answers, and may take them over: %v: see that the interface has an MTU of 576 at least, and that nothing on the node forbids such frames", l.unsaid))
	}
	var refused, met, asked, both []string
	unable := make(map[string][]string)
	for _, a := range l.machine.Refused() {
		if why, is := l.unable[a]; is {
			unable[why] = append(unable[why], a.String())
		} else if mac, is := l.strangers[a]; is {
			refused = append(refused, fmt.Sprintf("%s (%s)", a, s.who(l, a, mac)))
		}
	}
	for _, a := range l.machine.Met(s.now) {
		if mac, is := l.strangers[a]; is {
			met = append(met, fmt.Sprintf("%s (%s)", a, s.who(l, a, mac)))
		}
	}
	if len(met) > 0 {
		words = append(words, fmt.Sprintf("on the link of %s somebody else has said within a minute that it has %s, for which nodes answer: take the address from that machine, or out of the cluster", l.name, printable.Few(met, 0)))
	}
	if len(refused) > 0 {
		words = append(words, fmt.Sprintf("on the link of %s somebody else has %s, and this node leaves it alone: take the address from that machine, or out of the cluster; where it is a node that answers for it, have the switches pass frames of EtherType %#04x", l.name, printable.Few(refused, 0), wire.EtherHeartbeat))
	}
	for _, a := range slices.SortedFunc(maps.Keys(l.askers), netip.Addr.Compare) {
		asked = append(asked, fmt.Sprintf("%s (%s)", a, s.who(l, a, l.askers[a])))
	}
	if len(asked) > 0 {
		words = append(words, fmt.Sprintf("on the link of %s somebody has asked again and again within a minute whether anybody has %s, as who is about to take it does, and has kept this node from it for some seconds: see what that machine is, and have it ask for other addresses alone", l.name, printable.Few(asked, 0)))
	}
	for _, a := range slices.SortedFunc(maps.Keys(l.foreign), netip.Addr.Compare) {
		if l.machine.Owns(a) {
			both = append(both, fmt.Sprintf("%s (%s)", a, l.foreign[a].mac))
		}
	}
	if len(both) > 0 {
		words = append(words, fmt.Sprintf("on the link of %s a node of another cluster, or one that was deleted, says that it has %s, for which this node answers: give each cluster addresses of its own, and end the agent of a deleted node", l.name, printable.Few(both, 0)))
	}
	for _, why := range slices.Sorted(maps.Keys(unable)) {
		words = append(words, fmt.Sprintf("on the link of %s this node cannot answer for %s and leaves it to others: %s", l.name, printable.Few(unable[why], 0), why))
	}
	for _, d := range l.machine.Discords(s.now) {
		var all []string
		for _, a := range d.Addresses {
			all = append(all, a.String())
		}
		what := ""
		switch {
		case d.Node == "":
			what = "nodes take " + printable.Few(all, 0) + " from each other again and again"
		case d.Deaf:
			what = fmt.Sprintf("%s does not hear this node, which says that it has %s", d.Node, printable.Few(all, 0))
		default:
			what = fmt.Sprintf("this node does not hear %s, which has %s, as %s says", d.Node, printable.Few(all, 0), d.By)
		}
		words = append(words, fmt.Sprintf("on the link of %s %s: see that its switches pass all frames of EtherType %#04x, also those to groups, between all nodes", l.name, what, wire.EtherHeartbeat))
	}
	return words
}

// who says who has an address, as far as that is known.
func (s *Server) who(l *elected, a netip.Addr, mac wire.MAC) string {
	if node, is := l.peer(s.now, mac, s.Timing); is {
		return node + ", " + mac.String()
	}
	if f, is := l.foreign[a]; is && f.mac == mac {
		return "a node of another cluster or a deleted one, " + mac.String()
	}
	return mac.String()
}
