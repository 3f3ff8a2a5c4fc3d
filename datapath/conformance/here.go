package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/plan"
)

// Frontends that the node itself answers. The story here.txtar says who may ask, and what
// becomes of the rest of an address; what is here is what packets alone do not show.

// hereFronts are the addresses of such frontends, one for each family.
var hereFronts = []netip.AddrPort{netip.MustParseAddrPort("10.3.0.1:53"), netip.MustParseAddrPort("[fd00:3::1]:53")}

// answeredPlan returns servicePlan with hereFronts, which the node itself answers, or has one
// answer, and what each of both has besides.
func answeredPlan(t *testing.T, here bool, more string) *plan.Plan {
	t.Helper()
	text := servicePlan + more
	for _, f := range hereFronts {
		for _, protocol := range []string{"tcp", "udp"} {
			if line := fmt.Sprintf("service default %s %s %d ", f.Addr(), protocol, f.Port()); here {
				text += line + "from inside here\n" + line + "from outside to names\n"
			} else {
				text += line + "to names\n"
			}
		}
		text += fmt.Sprintf("service default %s tcp 9153 to metrics\nservice default %s any\n", f.Addr(), f.Addr())
	}
	for _, one := range []string{"10.1.1.3", "[fd00:1::3]"} {
		text += "backend default names " + one + ":8080\nbackend default metrics " + one + ":9153\n"
	}
	p, err := plan.Parse(text)
	must(t, err)
	must(t, p.Validate())
	return p
}

// answers checks frontends that the node itself answers.
func (s *suite) answers(t *testing.T) {
	if !s.able.AnswersHere {
		t.Skip("left out: the data plane does not have the node itself answer")
	}
	t.Run("untracked", s.answersUntracked)
	t.Run("impostors", s.impostors)
	t.Run("former connections", s.formerConnections)
	t.Run("under load", s.answersUnderLoad)
	t.Run("those who may ask", s.mayAsk)
	t.Run("too many questions", s.tooManyQuestions)
}

// tooManyQuestions checks that a pod that asks the node more than its share, by bytes or by
// datagrams, is cut short, is told of, and takes nothing from another, nor from its own connections.
// What is too short for a question is dropped for a reason of its own.
func (s *suite) tooManyQuestions(t *testing.T) {
	const long = time.Minute
	l, n, _ := s.answerBench(t, true, "")
	flood, other := n.pods["client"].host, n.pods["one"].host
	for _, to := range hereFronts {
		c, err := flood.dial("udp", netip.Addr{}, to, long)
		must(t, err)
		defer c.Close()
		dropped := func(reason datapath.Reason, size, times int, rest time.Duration) {
			t.Helper()
			before := l.dropped(t)[n][reason]
			packet := make([]byte, size)
			await.NoError(t, long, fmt.Sprintf("of %d datagrams of %d bytes some are dropped as %s", times, size, reason), func() error {
				time.Sleep(rest)
				for range times {
					if _, err := c.Write(packet); err != nil && !errors.Is(err, unix.ENOBUFS) {
						return err
					}
				}
				if l.dropped(t)[n][reason] == before {
					return errors.New("none is")
				}
				return nil
			})
		}
		dropped(datapath.TooMany, 1200, 1000, 0)
		// So many bytes one may send: it comes to a megabyte a second.
		dropped(datapath.TooMany, shortestQuestion, 2000, 100*time.Millisecond)
		dropped(datapath.NoQuestion, shortestQuestion-1, 1, 0)
		if by, _, err := ask(other, "udp", to, "who", long); err != nil || by != n.name {
			t.Errorf("another pod asks %s, and %q answers (%v)", to, by, err)
		}
		if by, _, err := ask(flood, "tcp", to, "who", long); err != nil || by != n.name {
			t.Errorf("the pod itself asks %s by TCP, and %q answers (%v)", to, by, err)
		}
		// What it may send comes again with time.
		if by, _, err := ask(flood, "udp", to, "who", long); err != nil || by != n.name {
			t.Errorf("the pod itself asks %s again, and %q answers (%v)", to, by, err)
		}
	}
}

// answer has a host answer at hereFronts as a program does that binds to these addresses
// and nothing else, whether or not the node has them for its own yet, or still: each line, or
// datagram, with itself and the host's name.
func (l *topology) answer(h *host) {
	l.t.Helper()
	for _, f := range hereFronts {
		l.answerAt(h, f)
	}
}

func (l *topology) answerAt(h *host, at netip.AddrPort) {
	l.t.Helper()
	config := net.ListenConfig{Control: control(transparent)}
	config.SetMultipathTCP(false)
	family := map[bool]string{true: "4", false: "6"}[at.Addr().Is4()]
	must(l.t, h.Do(func() error {
		c, err := config.ListenPacket(context.Background(), "udp"+family, at.String())
		if err != nil {
			return err
		}
		l.keep(c, func() {
			for data := make([]byte, 100); ; {
				n, from, err := c.ReadFrom(data)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					_, _ = c.WriteTo([]byte(string(data[:n])+" "+h.name), from)
				}
			}
		})
		streams, err := config.Listen(context.Background(), "tcp"+family, at.String())
		if err != nil {
			return err
		}
		l.keep(streams, func() {
			for {
				c, err := streams.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					continue
				}
				l.keep(c, func() {
					defer c.Close()
					for lines := bufio.NewScanner(c); lines.Scan(); {
						if _, err := fmt.Fprintln(c, lines.Text()+" "+h.name); err != nil {
							return
						}
					}
				})
			}
		})
		return nil
	}))
}

// ask sends a question from a host by a protocol, and returns who answers it. What is told of
// an earlier one, and what is lost, has it sent again, until it is answered or there is no
// patience left.
func ask(h *host, protocol string, to netip.AddrPort, question string, patient time.Duration) (by string, again int, err error) {
	for deadline := time.Now().Add(patient); ; again++ {
		by, err = askOnce(h, protocol, to, question)
		if err == nil || time.Now().After(deadline) {
			return by, again, err
		}
	}
}

// oneAnswer is how long a question waits for its answer until it is sent again.
const oneAnswer = 2 * time.Second

// shortestQuestion is how long a question for a name is at least, in bytes (RFC 1035): its header, and a
// name that is the root's, its type and its class.
const shortestQuestion = 12 + 5

func askOnce(h *host, protocol string, to netip.AddrPort, question string) (by string, err error) {
	question = fmt.Sprintf("%-*s", shortestQuestion, question)
	c, err := h.dial(protocol, netip.Addr{}, to, oneAnswer)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(oneAnswer)); err != nil {
		return "", err
	}
	line := question
	if protocol == "tcp" {
		line += "\n"
	}
	if _, err := c.Write([]byte(line)); err != nil {
		return "", err
	}
	data := make([]byte, 100)
	n, err := c.Read(data)
	if err != nil {
		return "", err
	}
	by, ok := strings.CutPrefix(strings.TrimSuffix(string(data[:n]), "\n"), question+" ")
	if !ok {
		return "", fmt.Errorf("the answer to %q is %q", question, data[:n])
	}
	return by, nil
}

// answerBench is a node that answers, with a client on it, and one who does where it does not.
func (s *suite) answerBench(t *testing.T, here bool, more string) (*topology, *node, map[string]*plan.Plan) {
	t.Helper()
	l := newTopology(t, s.make)
	plans := map[string]*plan.Plan{"node1": answeredPlan(t, here, more)}
	l.load(plans)
	n := l.nodes["node1"]
	l.answer(n.host)
	for _, a := range []string{"10.1.1.3:8080", "[fd00:1::3]:8080", "10.1.1.3:9153", "[fd00:1::3]:9153"} {
		l.answerAt(n.pods["one"].host, netip.MustParseAddrPort(a))
	}
	return l, n, plans
}

// answersUntracked checks that no connection is tracked to a frontend that the node itself answers,
// whoever asks, and that one is to a backend.
func (s *suite) answersUntracked(t *testing.T) {
	l, n, plans := s.answerBench(t, true, "")
	check := func(when string) {
		t.Helper()
		for _, from := range []*host{n.pods["client"].host, n.host} {
			for _, to := range hereFronts {
				for _, protocol := range []string{"udp", "tcp"} {
					if by, _, err := ask(from, protocol, to, "who", patience); err != nil || by != n.name {
						t.Errorf("%s: %s asks %s by %s, and %q answers (%v)", when, from.name, to, protocol, by, err)
					}
				}
				other := netip.AddrPortFrom(to.Addr(), 9153)
				if by, _, err := ask(from, "tcp", other, "who", patience); err != nil || by != "one" {
					t.Errorf("%s: %s asks %s, and %q answers (%v)", when, from.name, other, by, err)
				}
			}
		}
	}
	check("at first")
	seen := map[netip.AddrPort]int{}
	must(t, n.Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, f := range flows {
				for _, at := range []netlink.IPTuple{f.Forward, f.Reverse} {
					for ip, port := range map[string]uint16{at.SrcIP.String(): at.SrcPort, at.DstIP.String(): at.DstPort} {
						if a, err := netip.ParseAddr(ip); err == nil {
							seen[netip.AddrPortFrom(a.Unmap(), port)]++
						}
					}
				}
			}
		}
		return nil
	}))
	for _, f := range hereFronts {
		if seen[f] > 0 {
			t.Errorf("%d connections are tracked to %s, which the node itself answers", seen[f], f)
		}
		if other := netip.AddrPortFrom(f.Addr(), 9153); seen[other] == 0 {
			t.Errorf("no connection is tracked to %s, which has a backend", other)
		}
	}
	l.restart(plans)
	check("behind a restart")
	for _, d := range disturbances {
		if d.what != "routes are deleted" && d.what != "the packet filter is flushed" {
			continue
		}
		must(t, n.Do(func() error {
			_, err := d.do(n)
			return err
		}))
		if lines := l.repair(n); len(lines) == 0 {
			t.Errorf("%s, and there was nothing to repair", d.what)
		}
		check(d.what)
	}
	p := plans["node1"]
	other := *p
	other.Services = plan.Table[plan.ServiceKey, plan.Service]{}
	l.apply(n, &other)
	l.notDelivered(t, n, "the frontends are gone")
	l.apply(n, p)
	check("they are back")
	must(t, n.dataPlane.Remove(t.Context()))
	l.notDelivered(t, n, "all is removed")
}

// notDelivered checks that the node's kernel does not take hereFronts for its own.
func (l *topology) notDelivered(t *testing.T, n *node, when string) {
	t.Helper()
	must(t, n.Do(func() error {
		for _, f := range hereFronts {
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: ipNet(netip.PrefixFrom(f.Addr(), f.Addr().BitLen()))},
				netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
			if err != nil {
				return err
			}
			if len(routes) > 0 {
				t.Errorf("%s, and there is still %v", when, routes)
			}
		}
		return nil
	}))
}

// impostors checks that nobody else sends to endpoints under an address at which the node
// itself answers, of which nothing is asked who began it.
func (s *suite) impostors(t *testing.T) {
	l, n, _ := s.answerBench(t, true, "")
	const port = 5353
	for _, pod := range []string{"client", "two"} {
		l.listen(n.pods[pod].host, service{plan.UDP, port})
	}
	arrives := func(from *host, source netip.Addr, to netip.Addr, within time.Duration) bool {
		t.Helper()
		word, arrived := l.expect()
		c, err := from.dial("udp", source, netip.AddrPortFrom(to, port), within)
		if err != nil {
			return false
		}
		defer c.Close()
		_, _ = c.Write([]byte(word))
		select {
		case <-arrived:
			return true
		case <-time.After(within):
			return false
		}
	}
	for i, front := range hereFronts {
		to := n.pods["client"].addresses[i]
		for _, from := range []*host{l.out, n.pods["two"].host} { // two may send under others' addresses
			if own := map[bool]netip.Addr{true: outside[i].Addr(), false: n.pods["two"].addresses[i]}[from == l.out]; !arrives(from, own, to, patience) {
				t.Errorf("what %s sends to %s from %s does not arrive", from.name, to, own)
			}
			if arrives(from, front.Addr(), to, disappointment) {
				t.Errorf("what %s sends to %s from %s arrives, where the node itself answers", from.name, to, front.Addr())
			}
		}
		if !arrives(n.host, front.Addr(), to, patience) {
			t.Errorf("what the node sends to %s from %s does not arrive", to, front.Addr())
		}
	}
}

// formerConnections checks that those end that a frontend's backends had, once the node
// answers itself, and that others go on.
func (s *suite) formerConnections(t *testing.T) {
	l, n, _ := s.answerBench(t, false, "")
	for _, from := range []*host{n.pods["client"].host, n.host} {
		for _, front := range hereFronts {
			open := func(port uint16) net.Conn {
				t.Helper()
				c, err := from.dial("tcp", netip.Addr{}, netip.AddrPortFrom(front.Addr(), port), patience)
				must(t, err)
				must(t, c.SetDeadline(time.Now().Add(patience)))
				return c
			}
			ends, stays := open(front.Port()), open(9153)
			l.apply(n, answeredPlan(t, true, ""))
			if _, err := ends.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("%s is connected to %s when the node comes to answer there, and gets: %v", from.name, front, err)
			}
			_, err := fmt.Fprintln(stays, "still")
			must(t, err)
			if line, err := bufio.NewReader(stays).ReadString('\n'); line != "still one\n" {
				t.Errorf("%s is connected to another port of %s when the node comes to answer there, and gets %q (%v)", from.name, front.Addr(), line, err)
			}
			ends.Close()
			stays.Close()
			l.apply(n, answeredPlan(t, false, ""))
		}
	}
}

// mayAsk checks that nothing is lost of what they send who may ask before a change and behind it, while others may ask, or
// may not any more. Each datagram is judged by itself.
func (s *suite) mayAsk(t *testing.T) {
	with := func(turn int) *plan.Plan {
		t.Helper()
		text := servicePlan + fmt.Sprintf("service default %s udp %d from inside here sources some\n", hereFronts[0].Addr(), loadPort)
		if turn%2 == 0 {
			text += "source default some 10.1.0.0/22\n"
		} else { // and what is in it
			text += "source default some 10.1.1.0/24\n"
			for i := range 256 {
				text += fmt.Sprintf("source default some 10.1.%d.%d/32\n", i/128*2, 2*(i%128))
			}
		}
		for i := range 1000 { // so that it takes long
			text += fmt.Sprintf("source default some 10.7.%d.%d/32\n", i/100, 2*(i%100)+turn%2)
		}
		p, err := plan.Parse(text)
		must(t, err)
		return p
	}
	l := newTopology(t, s.make)
	l.load(map[string]*plan.Plan{"node1": with(0)})
	n := l.nodes["node1"]
	stream := newLoad(t)
	stream.sinkAt(n.host, hereFronts[0].Addr(), 1)
	for _, name := range []string{"client", "one"} {
		stream.flowing(stream.stream(name, n.pods[name].host, netip.AddrPortFrom(hereFronts[0].Addr(), loadPort)))
	}
	for turn := range 2 * flips {
		l.apply(n, with(turn+1))
	}
	stream.end()
	for _, s := range stream.streams {
		if got, _, _ := stream.arrived(s); got != s.sent.Load() {
			t.Errorf("%d of %d datagrams of %s arrived, the first that did not is %d", got, s.sent.Load(), s.name, stream.missed(s))
		}
	}
}

// answersUnderLoad checks that all questions are answered while the node comes to answer
// itself, and ceases to: each once more at most, where its answer was under way in the moment
// when the connections of the backend ended.
func (s *suite) answersUnderLoad(t *testing.T) {
	l, n, _ := s.answerBench(t, false, "")
	ctx, cancel := context.WithCancel(t.Context())
	var questions atomic.Int64
	again := map[string]*atomic.Int64{"udp": {}, "tcp": {}}
	byWhom := map[string]*atomic.Int64{n.name: {}, "one": {}}
	running := make(chan error, 100) // more than there are who ask
	askers := 0
	for _, from := range []*host{n.pods["client"].host, n.host} {
		for _, to := range hereFronts {
			for _, protocol := range []string{"udp", "udp", "tcp"} {
				askers++
				go func() {
					for i := 0; ctx.Err() == nil; i++ {
						by, repeated, err := ask(from, protocol, to, fmt.Sprint("q", i), 6*patience)
						if err != nil || byWhom[by] == nil {
							running <- fmt.Errorf("%s asks %s by %s, and %q answers: %w", from.name, to, protocol, by, err)
							return
						}
						byWhom[by].Add(1)
						questions.Add(1)
						again[protocol].Add(int64(repeated))
					}
					running <- nil
				}()
			}
		}
	}
	moved := func(to string) bool {
		for before, deadline := byWhom[to].Load(), time.Now().Add(6*patience); byWhom[to].Load() < before+int64(4*askers); time.Sleep(pause) {
			if time.Now().After(deadline) {
				return false
			}
		}
		return true
	}
	for i := range 2 * flips {
		here := i%2 == 0
		l.apply(n, answeredPlan(t, here, ""))
		if to := map[bool]string{true: n.name, false: "one"}[here]; !moved(to) {
			t.Errorf("%s is to answer, and gets no questions", to)
			break
		}
	}
	cancel()
	var failed []error
	for range askers {
		failed = append(failed, <-running)
	}
	if failed = slices.DeleteFunc(failed, func(err error) bool { return err == nil }); len(failed) > 0 {
		t.Errorf("of %d who ask %d are not answered: %v", askers, len(failed), errors.Join(failed...))
	}
	// What is lost in any step of a change is lost to all who ask in that moment. Connections
	// that are open then end.
	if most := int64(flips * askers / 6); again["udp"].Load() > most {
		t.Errorf("%d questions of %d were asked again while who answers changed %d times; expected no more than %d", again["udp"].Load(), questions.Load(), 2*flips, most)
	}
	t.Logf("%d questions, asked again: %d by UDP and %d by TCP", questions.Load(), again["udp"].Load(), again["tcp"].Load())
}
