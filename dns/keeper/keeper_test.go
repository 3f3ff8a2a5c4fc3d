package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/internal/await"
)

// long is how long to wait for what should happen.
const long = time.Minute

// As another process than the test this is a server or a keeper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "server":
			serve(os.Args[2:])
		case "keeper":
			keep(os.Args[2:])
		}
	}
	os.Exit(m.Run())
}

// own is where a keeper alone is asked, whose server has a name.
func own(socket, name string) string { return socket + "-" + name }

// keep is a process that is a keeper, of a server with a name.
func keep(args []string) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	o := options(args[0], args[1:]...)
	o.Own = own(args[0], args[1])
	err := keeper.New(o).Run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func options(socket string, server ...string) keeper.Options {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return keeper.Options{Socket: socket, Server: append([]string{self, "server"}, server...), Every: 50 * time.Millisecond, Patience: 40,
		Log: slog.New(slog.DiscardHandler)}
}

// serve is a server with a name and addresses, that tells who sends a datagram or connects its
// name and pid. Its name says what is wrong with it.
func serve(args []string) {
	name := args[0]
	if strings.HasPrefix(name, "crash") {
		os.Exit(3)
	}
	line, err := keeper.Inherited(3)
	if err != nil {
		panic(err)
	}
	report := keeper.Report{Addresses: []netip.Addr{}}
	for _, a := range args[1 : len(args)-1] {
		report.Addresses = append(report.Addresses, netip.MustParseAddr(a))
	}
	if strings.HasPrefix(name, "lost") {
		report.Addresses = nil
	}
	if strings.HasPrefix(name, "counts") {
		report.Problem = count(line.Memory)
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	var mu sync.Mutex
	open := map[netip.AddrPort][]interface {
		SetReadDeadline(time.Time) error
	}{}
	var reading sync.WaitGroup
	go func() {
		<-term
		mu.Lock()
		defer mu.Unlock()
		for _, all := range open {
			all[0].SetReadDeadline(time.Unix(1, 0))
		}
		reading.Wait()
		os.Exit(0)
	}()
	who := fmt.Sprintf(" %s %d", name, os.Getpid())
	line.Tell(report)
	for {
		opened, closed, question, err := line.Hear()
		if err != nil {
			os.Exit(1)
		}
		if strings.HasPrefix(name, "mute") {
			continue
		}
		mu.Lock()
		for _, s := range opened {
			c, err := net.FilePacketConn(s.UDP)
			if err != nil {
				panic(err)
			}
			l, err := net.FileListener(s.TCP)
			if err != nil {
				panic(err)
			}
			u := c.(*net.UDPConn)
			if strings.HasPrefix(name, "tight") {
				u.SetReadBuffer(tight)
			}
			if strings.HasPrefix(name, "room") {
				report.Problem = room(u)
			}
			open[s.At] = append(open[s.At], u)
			report.Serves = append(report.Serves, s.At)
			reading.Go(func() {
				buf := make([]byte, 512)
				for {
					n, from, err := u.ReadFromUDPAddrPort(buf)
					if err != nil {
						return
					}
					u.WriteToUDPAddrPort(append(buf[:n:n], who...), from)
				}
			})
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					c.Write([]byte(who))
					c.Close()
				}
			}()
		}
		for _, at := range closed {
			open[at][0].SetReadDeadline(time.Unix(1, 0))
			delete(open, at)
			report.Serves = slices.DeleteFunc(report.Serves, func(o netip.AddrPort) bool { return o == at })
		}
		mu.Unlock()
		if question > 0 {
			line.Answer(question, report)
		} else {
			line.Tell(report)
		}
	}
}

// run has a keeper run in this process until the test ends, or the returned function is called.
func run(t *testing.T, o keeper.Options) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- keeper.New(o).Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// begin starts a keeper as a process of its own.
func begin(t *testing.T, socket string, server ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"keeper", socket}, server...)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// serving waits until the keeper at a socket serves at so many addresses, and returns them.
func serving(t *testing.T, socket string, n int) (at []netip.AddrPort) {
	t.Helper()
	await.NoError(t, long, "the keeper serves", func() error {
		s, err := keeper.Ask(t.Context(), socket)
		if err == nil && (!s.Serving || s.Problem != "" || len(s.Addresses) != n) {
			err = fmt.Errorf("it says %+v", s)
		}
		at = s.Addresses
		return err
	})
	return at
}

// problem waits until the keeper at a socket says a problem.
func problem(t *testing.T, socket, says string) {
	t.Helper()
	await.NoError(t, long, "the keeper tells a problem", func() error {
		s, err := keeper.Ask(t.Context(), socket)
		if err == nil && !strings.Contains(s.Problem, says) {
			err = fmt.Errorf("it says %+v", s)
		}
		return err
	})
}

// ask sends words to an address, and returns who answers. Where nothing comes within a time, it
// sends them again, and counts that.
func ask(c *net.UDPConn, words string, within time.Duration, again *atomic.Int64) (name string, pid int, err error) {
	buf := make([]byte, 512)
	for deadline := time.Now().Add(long); ; again.Add(1) {
		if _, err := c.Write([]byte(words)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return "", 0, err
		}
		c.SetReadDeadline(time.Now().Add(within))
		for {
			n, err := c.Read(buf)
			if errors.Is(err, unix.ECONNREFUSED) {
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				break
			}
			if f := strings.Fields(string(buf[:n])); len(f) == 3 && f[0] == words {
				pid, err := strconv.Atoi(f[2])
				return f[1], pid, err
			}
		}
		if time.Now().After(deadline) {
			return "", 0, fmt.Errorf("%q was not answered", words)
		}
	}
}

// clients ask all the time, until end is called, which returns how many answers there were, how
// often one did not come in time, and what failed.
func clients(t *testing.T, at netip.AddrPort, number int, within time.Duration) (answers, again *atomic.Int64, end func()) {
	t.Helper()
	answers, again = new(atomic.Int64), new(atomic.Int64)
	var stop atomic.Bool
	var all sync.WaitGroup
	failed := make([]error, number)
	for i := range number {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer c.Close()
			for n := 0; !stop.Load(); n++ {
				if _, _, err := ask(c, fmt.Sprint(i, "-", n)[:], within, again); err != nil {
					failed[i] = err
					return
				}
				answers.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	end = sync.OnceFunc(func() {
		stop.Store(true)
		all.Wait()
		if err := errors.Join(failed...); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return answers, again, end
}

// who returns who answers at an address now.
func who(t *testing.T, at netip.AddrPort) (name string, pid int) {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	name, pid, err = ask(c, "who", time.Second, new(atomic.Int64))
	if err != nil {
		t.Fatal(err)
	}
	return name, pid
}

func socket(t *testing.T) string { return filepath.Join(t.TempDir(), "weft", "dns.sock") }

// TestServe serves at two addresses of a server's choice, and at one that no interface has.
func TestServe(t *testing.T) {
	s := socket(t)
	if _, err := keeper.Ask(t.Context(), s); err == nil || !strings.Contains(err.Error(), "is weft-dns running?") {
		t.Errorf("no keeper: %v", err)
	}
	end := run(t, options(s, "fine", "127.0.0.1", "::1", "192.0.2.7"))
	at := serving(t, s, 3)
	if info, err := os.Stat(s); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
	if err := keeper.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	for _, a := range at {
		if a.Addr() == netip.MustParseAddr("192.0.2.7") {
			continue
		}
		if name, _ := who(t, a); name != "fine" {
			t.Errorf("%s serves at %s", name, a)
		}
		c, err := net.DialTimeout("tcp", a.String(), long)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(long))
		buf := make([]byte, 100)
		if n, err := c.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), " fine ") {
			t.Errorf("%s by TCP: %q, %v", a, buf[:n], err)
		}
		c.Close()
	}
	if err := os.Remove(s); err != nil {
		t.Fatal(err)
	}
	serving(t, s, 3)
	_, pid := who(t, at[0])
	end()
	if _, err := os.Stat(s); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a keeper that has ended: %v", err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the server of a keeper that has ended: %v", err)
	}
	if l, err := net.Listen("tcp", at[0].String()); err != nil {
		t.Error(err)
	} else {
		l.Close()
	}
}

// TestKilledServer kills the server again and again while clients ask. All are answered. Sent
// again is at most what a server had read and not answered when it was killed: one query of
// each client.
func TestKilledServer(t *testing.T) {
	s := socket(t)
	run(t, options(s, "fine", "127.0.0.1"))
	at := serving(t, s, 1)[0]
	const number, kills = 4, 6
	answers, again, end := clients(t, at, number, 20*time.Second)
	for range kills {
		_, pid := who(t, at)
		before := answers.Load()
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await.NoError(t, long, "another server answers", func() error {
			if _, now := who(t, at); now == pid || answers.Load() < before+100 {
				return errors.New("not yet")
			}
			return nil
		})
	}
	end()
	if n := again.Load(); n > number*kills {
		t.Errorf("%d of %d queries were lost", n, answers.Load())
	}
	serving(t, s, 1)
}

// TestTakeOver starts keepers one after the other, of which each takes over from the one before,
// that is then ended or killed, while clients ask. No query is lost, and none is sent twice.
func TestTakeOver(t *testing.T) {
	s := socket(t)
	before := begin(t, s, "server0", "127.0.0.1", "127.0.0.2")
	at := serving(t, s, 2)
	answers, again, end := clients(t, at[0], 4, long)
	for i := 1; i <= 6; i++ {
		name := fmt.Sprint("server", i)
		next := begin(t, s, name, "127.0.0.1", "127.0.0.2")
		await.NoError(t, long, "the next keeper's server is the only one", func() error {
			for range 50 {
				if now, _ := who(t, at[1]); now != name {
					return fmt.Errorf("%s answers", now)
				}
			}
			return nil
		})
		if now := serving(t, s, 2); !slices.Equal(now, at) {
			t.Errorf("the addresses are %v, and were %v", now, at)
		}
		if i%2 == 0 {
			before.Process.Kill()
		} else {
			before.Process.Signal(unix.SIGTERM)
		}
		before.Wait()
		before = next
	}
	n := answers.Load()
	await.NoError(t, long, "clients go on", func() error {
		if answers.Load() < n+100 {
			return errors.New("not yet")
		}
		return nil
	})
	end()
	if again.Load() > 0 {
		t.Errorf("%d of %d queries were lost", again.Load(), answers.Load())
	}
}

// TestOldEndsFirst ends or kills a keeper before the next one is started, or just after.
func TestOldEndsFirst(t *testing.T) {
	s := socket(t)
	before := begin(t, s, "server0", "127.0.0.1")
	serving(t, s, 1)
	for i := 1; i <= 4; i++ {
		name := fmt.Sprint("server", i)
		var next *exec.Cmd
		if i > 2 {
			next = begin(t, s, name, "127.0.0.1")
		}
		if i%2 == 0 {
			before.Process.Kill()
		} else {
			before.Process.Signal(unix.SIGTERM)
		}
		before.Wait()
		if i <= 2 {
			next = begin(t, s, name, "127.0.0.1")
		}
		await.NoError(t, long, "the next keeper serves", func() error {
			state, err := keeper.Ask(t.Context(), s)
			if err != nil {
				return err
			}
			if !state.Serving || len(state.Addresses) != 1 {
				return fmt.Errorf("it says %+v", state)
			}
			if now, _ := who(t, state.Addresses[0]); now != name {
				return fmt.Errorf("%s answers", now)
			}
			return nil
		})
		before = next
	}
}

// TestNextIsBroken starts a keeper whose server does not serve beside one that does, and kills
// it, while clients ask. Nobody hears anything of it. Then one takes over that dies: the one
// before serves again.
func TestNextIsBroken(t *testing.T) {
	s := socket(t)
	begin(t, s, "first", "127.0.0.1")
	at := serving(t, s, 1)[0]
	answers, again, end := clients(t, at, 2, long)
	for _, broken := range []string{"crash", "mute"} {
		next := begin(t, s, broken, "127.0.0.1")
		n := answers.Load()
		await.NoError(t, long, "clients go on", func() error {
			if answers.Load() < n+300 {
				return errors.New("not yet")
			}
			return nil
		})
		next.Process.Kill()
		next.Wait()
		serving(t, s, 1)
	}
	end()
	if again.Load() > 0 {
		t.Errorf("%d of %d queries were lost", again.Load(), answers.Load())
	}
	next := begin(t, s, "second", "127.0.0.1")
	await.NoError(t, long, "the second serves", func() error {
		if name, _ := who(t, at); name != "second" {
			return errors.New(name)
		}
		return nil
	})
	serving(t, s, 1)
	// The first has handed over once its server is gone.
	await.NoError(t, long, "the second alone serves", func() error {
		for range 50 {
			if name, _ := who(t, at); name != "second" {
				return errors.New(name)
			}
		}
		return nil
	})
	next.Process.Kill()
	next.Wait()
	await.NoError(t, long, "the first serves again", func() error {
		state, err := keeper.Ask(t.Context(), s)
		if err != nil || !state.Serving || len(state.Addresses) != 1 {
			return fmt.Errorf("%+v, %w", state, err)
		}
		if name, _ := who(t, state.Addresses[0]); name != "first" {
			return errors.New(name)
		}
		return nil
	})
}

// TestHangingServer stops the server, which is killed and started again. Queries that came
// meanwhile are answered.
func TestHangingServer(t *testing.T) {
	s := socket(t)
	o := options(s, "fine", "127.0.0.1")
	o.Patience = 5
	run(t, o)
	at := serving(t, s, 1)[0]
	_, pid := who(t, at)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, again, end := clients(t, at, 2, long)
	await.NoError(t, long, "another server answers", func() error {
		if _, now := who(t, at); now == pid {
			return errors.New("not yet")
		}
		return nil
	})
	end()
	if again.Load() > 0 {
		t.Errorf("%d queries were lost", again.Load())
	}
}

// TestCrashLoop has servers that end at once: why is told, and the next are waited with.
func TestCrashLoop(t *testing.T) {
	s := socket(t)
	run(t, options(s, "crash", "127.0.0.1"))
	problem(t, s, "the server ended: exit status 3")
	state, err := keeper.Ask(t.Context(), s)
	if err != nil || state.Serving {
		t.Errorf("%+v, %v", state, err)
	}
	if err := keeper.Check(t.Context(), s); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("check: %v", err)
	}
}

// TestNoServer has a program that is not there.
func TestNoServer(t *testing.T) {
	s := socket(t)
	o := options(s)
	o.Server = []string{"/none/such"}
	run(t, o)
	problem(t, s, "no such file")
}

// TestProblems has servers that are not to be reached, for several reasons.
func TestProblems(t *testing.T) {
	taken, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		server []string
		port   int
		says   string
	}{
		"no address yet":         {[]string{"lost"}, 0, "no address is known at which to serve"},
		"says nothing":           {[]string{"mute", "127.0.0.1"}, 0, "the server does not read all sockets yet"},
		"taken":                  {[]string{"fine", "127.0.0.1"}, taken.LocalAddr().(*net.UDPAddr).Port, "listen at 127.0.0.1:" + fmt.Sprint(taken.LocalAddr().(*net.UDPAddr).Port) + ": bind: address already in use"},
		"an address of one link": {[]string{"fine", "fe80::1%lo"}, 0, "an address of one link alone"},
	} {
		t.Run(name, func(t *testing.T) {
			s := socket(t)
			o := options(s, c.server...)
			o.Port = uint16(c.port)
			run(t, o)
			problem(t, s, c.says)
			if err := keeper.Check(t.Context(), s); err == nil {
				t.Error("it is told to serve")
			}
		})
	}
	// What was taken is free now.
	s := socket(t)
	o := options(s, "fine", "127.0.0.1")
	o.Port = uint16(taken.LocalAddr().(*net.UDPAddr).Port)
	run(t, o)
	problem(t, s, "in use")
	taken.Close()
	serving(t, s, 1)
}

// TestServerDiesWithKeeper kills a keeper, and looks that its server, which hangs, is gone.
func TestServerDiesWithKeeper(t *testing.T) {
	s := socket(t)
	k := begin(t, s, "fine", "127.0.0.1")
	_, pid := who(t, serving(t, s, 1)[0])
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	k.Process.Signal(syscall.SIGKILL)
	k.Wait()
	await.NoError(t, long, "the server is gone", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return nil
		}
		return errors.New("it lives")
	})
}

// alone waits until a keeper that is asked at a socket of its own is as it should be.
func alone(t *testing.T, own string, good func(keeper.State) bool) {
	t.Helper()
	await.NoError(t, long, "the keeper is as it should be", func() error {
		s, err := keeper.Ask(t.Context(), own)
		if err == nil && !good(s) {
			err = fmt.Errorf("it says %+v", s)
		}
		return err
	})
}

// TestNothingToServe has servers that name no address, as where pods answer for names: all is as
// it should be, also while one keeper takes over from another.
func TestNothingToServe(t *testing.T) {
	s := socket(t)
	idle := func(state keeper.State) bool {
		return state.Idle && !state.Serving && state.Problem == "" && len(state.Addresses) == 0
	}
	first := begin(t, s, "first")
	alone(t, s, idle)
	if err := keeper.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	before, err := os.Stat(s)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, "second")
	await.NoError(t, long, "the second takes over", func() error {
		if now, err := os.Stat(s); err != nil || os.SameFile(before, now) {
			return fmt.Errorf("it is the one before (%v)", err)
		}
		return nil
	})
	alone(t, s, idle)
	first.Process.Kill()
	first.Wait()
	if err := keeper.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestRefusedAddress serves at one address though another is taken, and tells of that.
func TestRefusedAddress(t *testing.T) {
	taken, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := socket(t)
	o := options(s, "fine", "127.0.0.1", "127.0.0.2")
	o.Port = uint16(taken.LocalAddr().(*net.UDPAddr).Port)
	run(t, o)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), o.Port)
	alone(t, s, func(state keeper.State) bool {
		return state.Serving && slices.Equal(state.Addresses, []netip.AddrPort{at}) && strings.Contains(state.Problem, "in use")
	})
	if err := keeper.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	if name, _ := who(t, at); name != "fine" {
		t.Errorf("%s serves at %s", name, at)
	}
	taken.Close()
	serving(t, s, 2)
}

// TestNextKnowsNothing starts a keeper whose server has no records beside one that serves: it
// gets no query until the first is gone.
func TestNextKnowsNothing(t *testing.T) {
	s := socket(t)
	first := begin(t, s, "first", "127.0.0.1")
	at := serving(t, s, 1)[0]
	begin(t, s, "lost")
	alone(t, own(s, "lost"), func(state keeper.State) bool {
		return strings.Contains(state.Problem, "the server does not read all sockets yet")
	})
	for range 200 {
		if name, _ := who(t, at); name != "first" {
			t.Fatalf("%s answers", name)
		}
	}
	first.Process.Kill()
	first.Wait()
	await.NoError(t, long, "the other answers", func() error {
		if name, _ := who(t, at); name != "lost" {
			return errors.New(name)
		}
		return nil
	})
}

// TestAlive asks keepers of which one stands by, and one does nothing any more.
func TestAlive(t *testing.T) {
	s := socket(t)
	first := begin(t, s, "first", "127.0.0.1")
	serving(t, s, 1)
	begin(t, s, "second", "127.0.0.1")
	alone(t, own(s, "first"), func(state keeper.State) bool { return !state.Serving && len(state.Addresses) == 0 })
	for _, name := range []string{"first", "second"} {
		if err := keeper.Alive(t.Context(), own(s, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := first.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, long, "a keeper that does nothing is not alive", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if keeper.Alive(ctx, own(s, "first")) == nil {
			return errors.New("it is")
		}
		return nil
	})
}
