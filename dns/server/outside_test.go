package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/await"
)

// stale asks for a name whose time is five seconds, then the upstream is silent, until what is
// answered is not what was remembered, or is remembered for longer than its time.
func (n *node) stale(quiet *atomic.Bool) string {
	n.Helper()
	q := question("www.example", dns.TypeA)
	n.want("udp", q, "NOERROR 203.0.113.1")
	quiet.Store(true)
	var got string
	least := uint32(5)
	await.NoError(n, long, "the time is over", func() error {
		r, err := ask(n.at, "udp", "", q, long)
		n.must(err)
		got = words(r)
		if len(r.Answer) == 0 || r.Answer[0].Header().Ttl > least {
			return nil
		}
		least = min(least, r.Answer[0].Header().Ttl)
		return errors.New("not yet")
	})
	return got
}

// TestStale has the upstream fall silent: what it said holds for as long as it is set, or not.
func TestStale(t *testing.T) {
	for name, c := range map[string]struct {
		staleFor uint32
		want     string
	}{"stale": {3600, "NOERROR 203.0.113.1"}, "never": {0, "SERVFAIL"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var quiet atomic.Bool
			up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
				if !quiet.Load() {
					says(w, q, "@ 5 IN A 203.0.113.1")
				}
			})
			set := settings(up)
			set.StaleFor = c.staleFor
			n := run(t, set)
			if got := n.stale(&quiet); got != c.want {
				t.Errorf("when its time is over the answer is %s", got)
			}
			quiet.Store(false)
			await.NoError(n, long, "the upstream is asked again", func() error {
				if got := n.answers("udp", question("other.example", dns.TypeA)); got != "NOERROR 203.0.113.1" {
					return errors.New(got)
				}
				return nil
			})
		})
	}
}

// TestLoop has the upstream ask the name server itself: it is found, told, and not asked any
// more, until it does not do so any longer.
func TestLoop(t *testing.T) {
	var back atomic.Pointer[netip.AddrPort]
	var asked atomic.Int64
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked.Add(1)
		at := back.Load()
		if at == nil {
			says(w, q, "@ 60 IN A 203.0.113.1")
			return
		}
		r, err := ask(*at, "udp", "", q.Copy(), 10*time.Second)
		if err != nil {
			r = new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		}
		r.Id = q.Id
		w.WriteMsg(r)
	})
	// The first probe is to find it: until the node serves, the upstream waits for where.
	n := on(t, settings(up), service("web", 1))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	port := freePort(t)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	back.Store(&at)
	o := options(n.dir)
	o.Port = port
	go func() { ended <- keeper.New(o).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		n.must(<-ended)
	})
	n.state("the server serves", func(s keeper.State) bool { return s.Serving })
	n.at = at
	n.problem("what it is asked comes back to this name server")
	before := asked.Load()
	for i := range 20 {
		n.want("udp", question(fmt.Sprintf("www%d.example", i), dns.TypeA), "SERVFAIL")
	}
	// Probes still go there.
	if more := asked.Load() - before; more > 10 {
		t.Errorf("it was asked %d times", more)
	}
	n.want("udp", question("web.default.svc.cluster.local", dns.TypeA), "NOERROR 10.96.0.1")
	back.Store(nil)
	n.state("it is asked again", func(s keeper.State) bool { return s.Problem == "" })
	n.want("udp", question("www.example", dns.TypeA), "NOERROR 203.0.113.1")
}

// freePort returns a port that nobody uses, neither by UDP nor by TCP.
func freePort(t testing.TB) uint16 {
	t.Helper()
	for {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", c.LocalAddr().String())
		c.Close()
		if err == nil {
			l.Close()
			return uint16(l.Addr().(*net.TCPAddr).Port)
		}
	}
}

// TestSilent has those outside not answer: it is told for which names, and no more as soon as they
// answer whatever. One that answers no question for a name that nobody knows is not silent.
func TestSilent(t *testing.T) {
	t.Parallel()
	var silent, cautious atomic.Bool
	silent.Store(true)
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !silent.Load() && (!cautious.Load() || q.Question[0].Qtype != dns.TypeHINFO) {
			w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeRefused))
		}
	})
	stub := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.1") })
	set := settings(up)
	set.Stubs = []records.Stub{{Domain: "corp.example", Servers: []netip.AddrPort{stub}}}
	n := run(t, set)
	n.problem("nobody answers for names outside of the cluster: what is asked of " + up.String() + " stays without an answer")
	n.want("udp", question("www.corp.example", dns.TypeA), "NOERROR 203.0.113.1")
	cautious.Store(true)
	silent.Store(false)
	n.state("it answers again", func(s keeper.State) bool { return s.Problem == "" })
}

// TestUseless has those outside refuse whatever they are asked: it is told for which names, and no
// more as soon as they answer something. Of one that fails for a single zone nothing is told.
func TestUseless(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	refuse := func(w dns.ResponseWriter, q *dns.Msg) { w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeRefused)) }
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !works.Load() {
			refuse(w, q)
			return
		}
		says(w, q, "@ 60 IN A 203.0.113.1")
	})
	var asked atomic.Int64
	corp := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Qtype == dns.TypeHINFO {
			asked.Add(1)
			w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
			return
		}
		w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
	})
	set := settings(up)
	set.Stubs = []records.Stub{{Domain: "corp.example", Servers: []netip.AddrPort{corp}}}
	n := run(t, set)
	count := 0
	again := func(rcode string) {
		count++
		n.want("udp", question(fmt.Sprintf("www%d.example", count), dns.TypeA), rcode)
		n.want("udp", question(fmt.Sprintf("www%d.broken.corp.example", count), dns.TypeA), "SERVFAIL")
	}
	await.NoError(t, 2*long, "it is told that it does not help", func() error {
		again("REFUSED")
		s, err := keeper.Ask(t.Context(), filepath.Join(n.dir, "dns.sock"))
		if err == nil && !strings.Contains(s.Problem, "nobody helps with names outside of the cluster: all that is asked of "+up.String()) {
			err = fmt.Errorf("it is told %q", s.Problem)
		}
		return err
	})
	await.NoError(t, long, "who fails for a single zone is probed as often", func() error {
		again("REFUSED")
		if n := asked.Load(); n <= maxUseless {
			return fmt.Errorf("that was %d times", n)
		}
		return nil
	})
	n.state("nothing is told of it", func(s keeper.State) bool {
		return strings.Contains(s.Problem, "nobody helps") && !strings.Contains(s.Problem, "corp")
	})
	works.Store(true)
	again("NOERROR 203.0.113.1")
	n.state("it helps again", func(s keeper.State) bool { return s.Problem == "" })
}

// TestFirstIsUseless has the first of two servers help at first, and then refuse whatever it is asked: it
// is told, though the second one helps, and no more as soon as the first one does.
func TestFirstIsUseless(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	works.Store(true)
	var probed atomic.Int64
	first := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !works.Load() {
			w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeRefused))
			return
		}
		says(w, q, "@ 60 IN A 203.0.113.1")
		if q.Question[0].Qtype == dns.TypeHINFO {
			probed.Add(1)
		}
	})
	second := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.2") })
	n := run(t, settings(first, second))
	count := 0
	await.NoError(t, long, "it has helped a probe", func() error {
		if probed.Load() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	works.Store(false)
	await.NoError(t, 2*long, "it is told that it does not help", func() error {
		count++
		n.want("udp", question(fmt.Sprintf("www%d.example", count), dns.TypeA), "NOERROR 203.0.113.2")
		s, err := keeper.Ask(t.Context(), filepath.Join(n.dir, "dns.sock"))
		if err == nil && !strings.Contains(s.Problem, "others help with names outside of the cluster in the place of "+first.String()) {
			err = fmt.Errorf("it is told %q", s.Problem)
		}
		return err
	})
	works.Store(true)
	n.want("udp", question("last.example", dns.TypeA), "NOERROR 203.0.113.1")
	n.state("it helps again", func(s keeper.State) bool { return s.Problem == "" })
}

// TestWithoutEDNS has an upstream that refuses queries with EDNS0, as it does not know that: names are
// found all the same, also by TCP. One that says nothing to such queries is told of.
func TestWithoutEDNS(t *testing.T) {
	t.Parallel()
	for _, rcode := range []int{dns.RcodeFormatError, dns.RcodeNotImplemented} {
		t.Run(dns.RcodeToString[rcode], func(t *testing.T) {
			t.Parallel()
			up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
				if q.IsEdns0() != nil {
					w.WriteMsg(new(dns.Msg).SetRcode(q, rcode))
					return
				}
				var all []string
				for i := range 200 {
					all = append(all, fmt.Sprintf("@ 60 IN A 198.51.100.%d", i))
				}
				if q.Question[0].Name == "www.example." {
					all = all[1:2]
				}
				says(w, q, all...)
			})
			n := run(t, settings(up))
			n.want("udp", question("www.example", dns.TypeA), "NOERROR 198.51.100.1")
			if r, err := ask(n.at, "tcp", "", question("large.example", dns.TypeA), 2*outsideTime); err != nil || len(r.Answer) != 200 {
				t.Errorf("what is large is %v, %v", r, err)
			}
			signed := question("www.example", dns.TypeA)
			signed.SetEdns0(payload, true)
			n.want("udp", signed, dns.RcodeToString[rcode])
		})
	}
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
			if q.IsEdns0() == nil {
				says(w, q, "@ 60 IN A 203.0.113.1")
			}
		})
		n := run(t, settings(up))
		n.problem("nobody answers for names outside of the cluster")
	})
}
