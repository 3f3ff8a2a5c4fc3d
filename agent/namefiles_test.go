package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/await"
)

// As another process than the test this is the server of a keeper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "name-server" {
		serveNames()
	}
	os.Exit(m.Run())
}

// serveNames says that it serves at 127.0.0.1, and never answers.
func serveNames() {
	line, err := keeper.Inherited(3)
	if err != nil {
		panic(err)
	}
	report := keeper.Report{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	line.Tell(report)
	for {
		opened, _, question, err := line.Hear()
		if err != nil {
			os.Exit(1)
		}
		for _, s := range opened {
			report.Serves = append(report.Serves, s.At)
		}
		line.Answer(question, report)
	}
}

// keepNames has a keeper run at a socket and port until the returned function is called.
func keepNames(t *testing.T, socket string, port uint16) (end func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	k := keeper.New(keeper.Options{Socket: socket, Port: port, Server: []string{self, "name-server"}, Every: 20 * time.Millisecond, Patience: 1000, Log: slog.New(slog.DiscardHandler)})
	go func() { ended <- k.Run(ctx) }()
	end = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(end)
	return end
}

// TestNameServersOfTwoVersions has a cluster be upgraded, and go back: a name server that is found
// elsewhere than the one before takes over from it, whichever was there first, and at no moment
// does the node say that nobody serves.
func TestNameServersOfTwoVersions(t *testing.T) {
	f := nameFiles{t.TempDir()}
	now, former := filepath.Join(f.dir, NameSocketName), filepath.Join(f.dir, FormerNameSocketName)
	served := false
	serves := func(what string) (port uint16) {
		t.Helper()
		await.NoError(t, time.Minute, what, func() error {
			state, err := f.ask(t.Context())
			if served && (err != nil || !state.Serving) {
				t.Fatalf("%s: nobody serves: %+v, %v", what, state, err)
			}
			// It may be the other's socket, until that one is found there.
			at, before := socketAt(now), socketAt(former)
			if err == nil && (at == nil || before == nil || !os.SameFile(at, before)) {
				err = errors.New("the sockets are two")
			}
			if err == nil && !state.Serving {
				err = errors.New(state.Problem)
			}
			if err == nil {
				served, port = true, state.Addresses[0].Port()
			}
			return err
		})
		return port
	}

	endFormer := keepNames(t, former, 0)
	port := serves("the one before serves, and the next can find it")
	was := socketAt(now)
	endNow := keepNames(t, now, port)
	takesOver := func(what string) {
		t.Helper()
		await.NoError(t, time.Minute, what, func() error {
			serves(what)
			if os.SameFile(was, socketAt(now)) {
				return errors.New("it is the one before that is asked")
			}
			return nil
		})
		was = socketAt(now)
	}
	takesOver("the next takes over")
	endFormer()
	serves("the one before has ended")

	endFormer = keepNames(t, former, port)
	takesOver("that of the version before takes over")
	endNow()
	serves("the other one has ended")

	// A new one is there before it is known to whom it is the next.
	if err := os.Remove(now); err != nil {
		t.Fatal(err)
	}
	endNow = keepNames(t, now, port)
	await.NoError(t, time.Minute, "the new one begins by itself", func() error {
		state, err := keeper.Ask(t.Context(), now)
		if err == nil && !strings.Contains(state.Problem, "in use") {
			err = fmt.Errorf("it says %+v", state)
		}
		return err
	})
	was = socketAt(former)
	takesOver("the new one takes over at last")
	endFormer()
	serves("the new one is alone")
	endNow()
	if state, err := f.ask(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nobody is there any more: %+v, %v", state, err)
	}
}

// TestRecordsAreFoundByTheVersionBefore: it reads them at its own path, also those that are written
// anew.
func TestRecordsAreFoundByTheVersionBefore(t *testing.T) {
	f := nameFiles{t.TempDir()}
	at := filepath.Join(f.dir, FormerRecordsName)
	if err := os.WriteFile(at, []byte("what an agent of the version before has left"), 0o600); err != nil {
		t.Fatal(err)
	}
	var domain string
	follower := journal.Follow(at, func(b journal.Batch) { domain = b.Settings.Domain })
	for _, want := range []string{"one.example", "two.example"} {
		j, err := journal.Open(f.records())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(j.Put(&records.Settings{Domain: want}, nil, nil, nil, nil), f.leadToRecords(), j.Close()); err != nil {
			t.Fatal(err)
		}
		if follower.Look(); domain != want {
			t.Errorf("the version before reads %q, not %q: %v", domain, want, follower.State().Problem)
		}
	}
}
