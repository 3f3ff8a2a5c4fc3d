package keeper_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/internal/await"
)

// TestFoundLate has a keeper find another only when it has begun already, as where the socket of a
// version before comes to its path: it takes over, and no question is lost.
func TestFoundLate(t *testing.T) {
	before, s := socket(t), socket(t)
	first := begin(t, before, "first", "127.0.0.1")
	at := serving(t, before, 1)[0]
	o := options(s, "second", "127.0.0.1")
	o.Port = at.Port()
	run(t, o)
	problem(t, s, "in use")
	answers, again, end := clients(t, at, 4, 10*time.Second)
	if err := errors.Join(os.Link(before, s+".link"), os.Rename(s+".link", s)); err != nil {
		t.Fatal(err)
	}
	answeredBy(t, at, "second")
	serving(t, s, 1)
	alone(t, own(before, "first"), func(state keeper.State) bool {
		return state.StandsBy && !state.Serving && !state.Idle && len(state.Addresses) == 0
	})
	first.Process.Kill()
	first.Wait()
	goesOn(t, answers, again, end)
}

// TestBegunAtOnce has two keepers find no other when they begin. The first opens the sockets, and the
// second is the one that is asked: it takes over, and no question is lost.
func TestBegunAtOnce(t *testing.T) {
	s := socket(t)
	first := begin(t, s, "first", "127.0.0.1")
	at := serving(t, s, 1)[0]
	answers, again, end := clients(t, at, 4, 10*time.Second)
	// The server of one that does nothing goes on.
	if err := first.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, long, "the first does nothing", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", first.Process.Pid))
		if err == nil && !strings.Contains(string(stat), ") T ") {
			err = errors.New(string(stat))
		}
		return err
	})
	if err := os.Remove(s); err != nil {
		t.Fatal(err)
	}
	o := options(s, "second", "127.0.0.1")
	o.Port = at.Port()
	run(t, o)
	problem(t, s, "in use")
	if err := first.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	answeredBy(t, at, "second")
	serving(t, s, 1)
	alone(t, own(s, "first"), func(state keeper.State) bool { return state.StandsBy && len(state.Addresses) == 0 })
	goesOn(t, answers, again, end)
}

// answeredBy waits until a keeper's server answers.
func answeredBy(t *testing.T, at netip.AddrPort, name string) {
	t.Helper()
	await.NoError(t, long, name+" takes over", func() error {
		if is, _ := who(t, at); is != name {
			return errors.New(is)
		}
		return nil
	})
}

// goesOn checks that clients get more answers, and had to ask nothing again until then. It ends them.
func goesOn(t *testing.T, answers, again *atomic.Int64, end func()) {
	t.Helper()
	sofar := answers.Load()
	await.NoError(t, long, "it goes on", func() error {
		if answers.Load() < sofar+100 {
			return errors.New("few answers came")
		}
		return nil
	})
	end()
	if again.Load() != 0 {
		t.Errorf("%d questions were asked again", again.Load())
	}
}
