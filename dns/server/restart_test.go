package server

import (
	"errors"
	"fmt"
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

// TestKilled kills the server again and again while clients ask. Asked again is at most what a
// server had read when it was killed: one query of each client.
func TestKilled(t *testing.T) {
	n := run(t, settings(), service("web", 1))
	const number, kills = 3, 5
	answers, end := clients(n, number, 20*time.Second)
	for range kills {
		n.more(answers, 100)
		n.must(unix.Kill(n.pid(), unix.SIGKILL))
	}
	n.more(answers, 100)
	if again := end(); again > number*kills {
		t.Errorf("%d of %d queries were lost", again, answers.Load())
	}
}

// TestUpgrade has keepers with servers of their own take over, one from the other, while clients
// ask inside and others wait for an answer from outside. None is lost.
func TestUpgrade(t *testing.T) {
	asked, hold := make(chan struct{}, 100), make(chan struct{})
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if strings.HasSuffix(q.Question[0].Name, "slow.example.") {
			asked <- struct{}{}
			<-hold
		}
		says(w, q, "@ 60 IN A 203.0.113.1")
	})
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
