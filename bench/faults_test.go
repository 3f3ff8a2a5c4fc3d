package main

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/api"
	kubetraffic "github.com/weftnet/weft/test/kubernetes/traffic"
)

// What is written of backends is valid, and says of each what becomes of it.
func TestFaultySlices(t *testing.T) {
	at := netip.MustParseAddr("10.1.0.2")
	backends := []*faultBackend{{"a", "node1", at, ready}, {"b", "node2", at.Next(), draining}, {"c", "node3", at.Next().Next(), unlisted}}
	if err := api.Service.Validate(faultyService()); err != nil {
		t.Fatal(err)
	}
	slices := faultySlices(backends)
	if len(slices) != 2 || slices[0].Name == slices[1].Name {
		t.Fatalf("there are %d slices, not one of each protocol", len(slices))
	}
	for _, s := range slices {
		if err := api.EndpointSlice.Validate(s); err != nil {
			t.Fatal(err)
		}
		if len(s.Endpoints) != 2 {
			t.Fatalf("there are %d endpoints, not 2", len(s.Endpoints))
		}
		for i, terminating := range []bool{false, true} {
			c := s.Endpoints[i].Conditions
			if *c.Ready == terminating || !*c.Serving || *c.Terminating != terminating || *s.Endpoints[i].NodeName != backends[i].node {
				t.Errorf("endpoint %d is %+v", i, s.Endpoints[i])
			}
		}
	}
}

// A failure is excused where nobody could know, and where its backend went.
func TestFaultTally(t *testing.T) {
	const second = time.Second
	const known = 10 * second
	for name, c := range map[string]struct {
		gone, parted []string
		loaded       loaded
		want         map[way]int
		settled      time.Duration
		told, hang   int
	}{
		"before it was known": {gone: []string{"a"}, loaded: loaded{Failures: []failure{
			{opened, refused, 9 * second, 9 * second, ""}, {kept, timedOut, known + second, known + 2*second, "b"}}}},
		"though it was known": {gone: []string{"a"}, settled: 3 * second, loaded: loaded{Failures: []failure{
			{opened, timedOut, known + 3*second, known + 6*second, ""}, {fresh, refused, known + 3*second, known + 6*second, ""}}}, want: map[way]int{opened: 1, fresh: 1}},
		"late is no failure": {loaded: loaded{Failures: []failure{{opened, late, known + 3*second, known + 6*second, "a"}}}},
		"nothing was to be known": {loaded: loaded{Failures: []failure{
			{opened, broken, second, second, ""}, {held, hangs, second, second, "a"}}}, want: map[way]int{opened: 1, held: 1}},
		"held, whose backend went": {gone: []string{"a"}, told: 1, hang: 1, loaded: loaded{Failures: []failure{
			{held, broken, second, known + 5*second, "a"}, {held, hangs, second, 20 * second, "a"}}}},
		"held, whose backend lives": {gone: []string{"a"}, loaded: loaded{Failures: []failure{
			{held, broken, second, 2 * second, "b"}}}, want: map[way]int{held: 1}},
		"drained, and asked soon after": {parted: []string{"a"}, settled: second, loaded: loaded{Last: map[string]time.Duration{"a": known + second, "b": 20 * second}}},
		"drained, and asked all the time": {parted: []string{"a"}, settled: 5 * second, loaded: loaded{Last: map[string]time.Duration{"a": known + 5*second}},
			want: map[way]int{opened: 1}},
	} {
		got := faultRun{Happened: second, Known: known, Gone: c.gone, Parted: c.parted, Loaded: []*loaded{&c.loaded, {}}}.tally()
		for _, w := range []way{opened, held, kept, fresh} {
			if got.Unexcused[w] != c.want[w] {
				t.Errorf("%s: %d of %s are not excused, not %d", name, got.Unexcused[w], w, c.want[w])
			}
		}
		if got.Settled != c.settled || got.Told != c.told || got.Hang != c.hang {
			t.Errorf("%s: settled %v, told %d, waiting %d", name, got.Settled, got.Told, got.Hang)
		}
	}
}

// What is not Weft's doing is counted, and not judged.
func TestReportOfFaults(t *testing.T) {
	run := func(fault, by string) faultRun {
		return faultRun{Fault: fault, By: by, Loaded: []*loaded{{Asked: map[way]int{opened: 100}, Failures: []failure{{Way: opened, Fate: broken}}}}}
	}
	got := render(results{Faults: []faultRun{run(faultAway, byNftables), run(faultAway, byWeft), run(faultRemoved, byNftables)}}, "")
	for _, want := range []string{"# What breaks when something fails, measured\n", "[bench/faults-notes.md](../bench/faults-notes.md)", "[services-measured.md](services-measured.md)", "**Targets: 4 met, 0 met within noise, 2 missed.**",
		"| the API server away: kube-proxy, nftables | 100 | 0 | 0 | 1 | 0 |  | 1 |  |  |",
		"| the API server away: Weft | 100 | 0 | 0 | 1 | 0 |  | 1 | 0 | **missed** |"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
}

// Where something fails while nothing happens, the report says what it is worth.
func TestReportOfSpoiltFaults(t *testing.T) {
	run := faultRun{Fault: faultNone, By: byNftables, Loaded: []*loaded{{Failures: []failure{{Way: opened, Fate: late}}}}}
	const said = "**Something failed while nothing happened"
	if got := render(results{Faults: []faultRun{run}}, ""); strings.Contains(got, said) {
		t.Errorf("late answers are failures:\n%s", got)
	}
	run.Loaded[0].Failures[0].Fate = broken
	if got := render(results{Faults: []faultRun{run}}, ""); !strings.Contains(got, said) {
		t.Errorf("%q is missing:\n%s", said, got)
	}
}

func TestFaultSettings(t *testing.T) {
	for _, wrong := range [][]string{{"-connections", "1"}, {"-window", "1ms"}, {"-quiet", "-1s"}, {"-away", "0"}} {
		if _, err := parseSettings(wrong); err == nil || !strings.Contains(err.Error(), wrong[0]) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

func TestFateOf(t *testing.T) {
	for err, want := range map[error]fate{os.ErrDeadlineExceeded: timedOut, syscall.ETIMEDOUT: timedOut, syscall.ECONNREFUSED: refused, syscall.EHOSTUNREACH: refused,
		syscall.ECONNRESET: broken, syscall.EPIPE: broken} {
		if got := fateOf(&net.OpError{Err: err}); got != want {
			t.Errorf("%v is %s, not %s", err, got, want)
		}
	}
}

// Load on a backend that answers counts all of it and no failure, and tells when the backend ends.
func TestFaultLoad(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- kubetraffic.Server{Name: "a", Port: front.Port()}.Run(ctx) }()
	if err := meet(loading{Fronts: []netip.AddrPort{front}, Names: []string{"a"}}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := endLoad(); err == nil {
		t.Error("load ended that had not begun")
	}
	what := loading{Fronts: []netip.AddrPort{front}, Opened: 200, Fresh: 50, Held: 3, Kept: 2}
	if err := beginLoad(what); err != nil {
		t.Fatal(err)
	}
	if err := beginLoad(what); err == nil {
		t.Error("load began twice")
	}
	all := func(enough func(l *loaded) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			theLoad.mu.Lock()
			done := enough(&theLoad.loaded)
			theLoad.mu.Unlock()
			if done {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("it came to %+v", theLoad.loaded)
			}
		}
	}
	all(func(l *loaded) bool {
		return l.Asked[opened] > 20 && l.Asked[fresh] > 5 && l.Asked[kept] > 5 && l.Waits["a"] > 0
	})
	if err := partLoad([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	all(func(l *loaded) bool { return l.Asked[held] > 6 })
	if err := partLoad(nil); err != nil {
		t.Fatal(err)
	}
	// A machine that has much to do may answer late, or too late.
	for _, f := range theLoad.failures() {
		if f.Fate != late && f.Fate != timedOut {
			t.Errorf("with nothing amiss there is %+v", f)
		}
	}
	stop()
	all(func(l *loaded) bool {
		ways := map[way]bool{}
		for _, f := range l.Failures {
			ways[f.Way] = true
		}
		return len(ways) == 4
	})
	if _, err := endLoad(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// failures are those until now.
func (l *faultLoad) failures() []failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Failures
}
