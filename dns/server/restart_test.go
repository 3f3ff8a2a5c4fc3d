package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/await"
)

// clients ask for names inside all the time, until the returned function is called, which
// returns how many queries had no answer within a time, each of which is asked again.
func clients(n *node, number int, within time.Duration) (answers *atomic.Int64, end func() int64) {
	answers = new(atomic.Int64)
	var again atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	for range number {
		all.Go(func() {
			for !stop.Load() {
				r, err := ask(n.at, "udp", "", question("web.default.svc.cluster.local", dns.TypeA), within)
				switch {
				case err != nil:
					again.Add(1)
				case words(r) != "NOERROR 10.96.0.1":
					n.Errorf("the answer is %s", words(r))
					return
				default:
					answers.Add(1)
				}
			}
		})
	}
	n.Cleanup(func() { stop.Store(true); all.Wait() })
	return answers, func() int64 {
		stop.Store(true)
		all.Wait()
		return again.Load()
	}
}

// more waits until so many more queries are answered.
func (n *node) more(answers *atomic.Int64, number int64) {
	n.Helper()
	before := answers.Load()
	await.NoError(n, long, "clients are answered", func() error {
		if answers.Load() < before+number {
			return fmt.Errorf("%d are", answers.Load()-before)
		}
		return nil
	})
}

// TestKilled kills the server again and again, at random, while clients ask inside and outside. Each
// query is answered, and none is sent again.
func TestKilled(t *testing.T) {
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.1") })
			n := run(t, settings(up), service("web", 1))
			answers, end := clients(n, 3, long)
			var outside sync.WaitGroup
			stop := make(chan struct{})
			outside.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					r, err := ask(n.at, "udp", "", question(fmt.Sprintf("www%d.example", i), dns.TypeA), long)
					if err != nil {
						t.Errorf("a query outside was lost: %v", err)
					} else if got := words(r); got != "NOERROR 203.0.113.1" {
						t.Errorf("a query outside is answered %s", got)
					}
				}
			})
			// A keeper waits longer each time, and all that was read is to be young enough.
			for range 5 {
				n.more(answers, 1+rand.Int64N(200))
				n.must(unix.Kill(n.pid(), unix.SIGKILL))
			}
			n.more(answers, 100)
			close(stop)
			outside.Wait()
			if again := end(); again > 0 {
				t.Errorf("%d of %d queries were lost", again, answers.Load())
			}
		})
	}
}

// slowUpstream returns a server that says of slow.example, after it has said that it was asked, nothing
// until hold is closed.
func slowUpstream(t *testing.T) (at netip.AddrPort, asked <-chan struct{}, hold chan struct{}) {
	was := make(chan struct{}, 100)
	hold = make(chan struct{})
	return upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if strings.HasSuffix(q.Question[0].Name, "slow.example.") {
			was <- struct{}{}
			<-hold
		}
		says(w, q, "@ 60 IN A 203.0.113.1")
	}), was, hold
}

// TestHungServer stops a server that others have not answered yet: the keeper kills it, and the next
// one asks them again.
func TestHungServer(t *testing.T) {
	up, asked, hold := slowUpstream(t)
	n := on(t, settings(up), service("web", 1))
	o := options(n.dir)
	o.Patience = 30
	keep(n, o)
	var client sync.WaitGroup
	client.Go(func() {
		r, err := ask(n.at, "udp", "", question("slow.example", dns.TypeA), long)
		if err != nil {
			t.Errorf("the query was lost: %v", err)
		} else if got := words(r); got != "NOERROR 203.0.113.1" {
			t.Errorf("the query is answered %s", got)
		}
	})
	<-asked
	first := n.pid()
	n.must(unix.Kill(first, unix.SIGSTOP))
	await.NoError(n, long, "all of the server has stopped", func() error {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", first))
		for _, path := range stats {
			if stat, err := os.ReadFile(path); err != nil || !strings.Contains(string(stat), ") T ") {
				return fmt.Errorf("it is %s (%v)", stat, err)
			}
		}
		return err
	})
	close(hold)
	client.Wait()
	if n.pid() == first {
		t.Error("the server was not killed")
	}
}

// killers is where a server of these tests has somebody to ask for names outside who kills it.
func killers(dir string) string { return filepath.Join(dir, "killers") }

// serveKiller answers nothing outside, and kills this process for one name, which it notes first.
func serveKiller(dir string) error {
	at, err := os.ReadFile(killers(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := net.ListenPacket("udp", string(at))
	if err != nil {
		return err
	}
	go dns.ActivateAndServe(nil, c, dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if strings.HasSuffix(q.Question[0].Name, "killer.example.") {
			f, err := os.OpenFile(killers(dir)+"-asked", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				panic(err)
			}
			f.WriteString("x")
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
	}))
	return nil
}

// TestKillingQuery has a query kill whoever answers it: two servers do, and no third one. Others are
// answered then.
func TestKillingQuery(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.77:0")
	if err != nil {
		t.Fatal(err)
	}
	up := c.LocalAddr().(*net.UDPAddr).AddrPort()
	n := on(t, settings(up), service("web", 1))
	n.must(os.WriteFile(killers(n.dir), []byte(up.String()), 0o600))
	c.Close()
	keep(n, options(n.dir))
	first := n.pid()
	data, err := question("killer.example", dns.TypeA).Pack()
	n.must(err)
	client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(n.at))
	n.must(err)
	defer client.Close()
	_, err = client.Write(data)
	n.must(err)
	asked := func() int {
		all, _ := os.ReadFile(killers(n.dir) + "-asked")
		return len(all)
	}
	await.NoError(n, long, "two servers were killed", func() error {
		if asked() < maxBegun {
			return fmt.Errorf("%d were", asked())
		}
		return nil
	})
	answers, end := clients(n, 3, 5*time.Second)
	n.more(answers, 200)
	end()
	if n.pid() == first || asked() != maxBegun {
		t.Errorf("the server is %d, and was %d; %d were killed", n.pid(), first, asked())
	}
}

// TestUpgrade has keepers with servers of their own take over, one from the other, while clients
// ask inside and others wait for an answer from outside. None is lost.
func TestUpgrade(t *testing.T) {
	up, asked, hold := slowUpstream(t)
	n := on(t, settings(up), service("web", 1))
	self, err := os.Executable()
	n.must(err)
	begin := func() *exec.Cmd {
		cmd := exec.Command(self, "keeper", n.dir)
		cmd.Stderr = os.Stderr
		n.must(cmd.Start())
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		return cmd
	}
	before := begin()
	n.serving()
	first := n.pid()
	answers, end := clients(n, 3, long)
	n.more(answers, 100)
	slow := make(chan string, 1)
	go func() {
		r, err := ask(n.at, "udp", "", question("slow.example", dns.TypeA), long)
		if err != nil {
			slow <- err.Error()
			return
		}
		slow <- words(r)
	}()
	<-asked
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	for range 3 {
		mine, err := os.Stat(filepath.Join(n.dir, "dns.sock"))
		n.must(err)
		next := begin()
		await.NoError(n, long, "the next keeper is the one that is asked", func() error {
			if now, err := os.Stat(filepath.Join(n.dir, "dns.sock")); err != nil || os.SameFile(mine, now) {
				return fmt.Errorf("it is the one before (%v)", err)
			}
			return nil
		})
		// The server before is ending, or is about to.
		release()
		await.NoError(n, long, "another server is the only one", func() error {
			if n.pid() == first {
				return errors.New("it is the one before")
			}
			return nil
		})
		before.Process.Kill()
		before.Wait()
		n.more(answers, 100)
		first, before = n.pid(), next
	}
	if again := end(); again > 0 {
		t.Errorf("%d of %d queries were lost", again, answers.Load())
	}
	// On a machine that is very slow, what waits is over before another server is there.
	if got := <-slow; got != "NOERROR 203.0.113.1" && got != "SERVFAIL" {
		t.Errorf("the query that waited is answered %s", got)
	}
}
