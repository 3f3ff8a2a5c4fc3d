package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/drops"
	"github.com/weftnet/weft/plan"
)

// observed is a data plane that denies what a test says.
type observed struct {
	mu     sync.Mutex
	denied map[plan.VerdictKey]uint64
	// dropped is what it drops for other reasons.
	dropped map[datapath.Dropped]uint64
	err     error
	asked   int
	drops   chan datapath.Drop
}

func (o *observed) Denied() (map[plan.VerdictKey]uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked++
	if o.err != nil {
		return nil, o.err
	}
	all := map[plan.VerdictKey]uint64{}
	for k, n := range o.denied {
		all[k] = n
	}
	return all, nil
}

func (o *observed) Dropped() (map[datapath.Dropped]uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.dropped), o.err
}

func (o *observed) Follow(ctx context.Context, f func(datapath.Drop)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-o.drops:
			if !ok {
				return errors.New("the kernel's queue is full")
			}
			f(d)
		}
	}
}

func (o *observed) set(err error, packets uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err, o.denied = err, map[plan.VerdictKey]uint64{plan.Otherwise("web", plan.Incoming): packets}
	o.dropped = map[datapath.Dropped]uint64{{Reason: datapath.SpoofedSource, Interface: "weft1"}: packets / 2}
}

const isolation = "NetworkPolicy default/web ingress isolation"

func isolatedPlan(t *testing.T) *plan.Plan {
	p, err := plan.Parse(`node node1 addresses 172.30.0.11
endpoint weft1 network default addresses 10.1.1.2 name default/web ingress-policy web
route default 10.1.1.2/32 endpoint weft1
verdict web ingress otherwise deny # ` + isolation)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func observe(t *testing.T, o *observed) (d *denials, end func()) {
	p := isolatedPlan(t)
	d = &denials{log: slog.New(slog.DiscardHandler), node: "node1", plans: func() []*plan.Plan { return []*plan.Plan{p} }}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { d.run(ctx, o) })
	return d, func() { cancel(); wg.Wait() }
}

var dropped = datapath.Drop{Time: time.Unix(0, 0).UTC(), Direction: plan.Incoming, Interface: "weft1", Network: plan.DefaultNetwork,
	Source: netip.MustParseAddr("10.1.2.9"), Destination: netip.MustParseAddr("10.1.1.2"), Protocol: plan.TCP, SourcePort: 4711, Port: 80}

var record = drops.Record{Time: dropped.Time, Node: "node1", Network: plan.DefaultNetwork, Direction: plan.Incoming, Rule: isolation, Protocol: "tcp",
	Source: drops.End{Address: dropped.Source, Port: 4711}, Destination: drops.End{Address: dropped.Destination, Pod: "default/web", Port: 80}}

func askOnce(t *testing.T, d *denials) (int, drops.Report) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, httptest.NewRequest("GET", "/drops", nil))
	var r drops.Report
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
	}
	return w.Code, r
}

func askToFollow(d *denials) int {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, httptest.NewRequest("GET", "/drops?follow=true", nil))
	return w.Code
}

func TestDropsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &observed{drops: make(chan datapath.Drop)}
		o.set(nil, 3)
		d, end := observe(t, o)
		synctest.Wait()
		o.drops <- dropped
		synctest.Wait()
		code, got := askOnce(t, d)
		want := drops.Report{Counts: []drops.Count{{Rule: isolation, Direction: plan.Incoming, Packets: 3},
			{Reason: datapath.SpoofedSource, Direction: plan.Outgoing, From: "default/web", Packets: 1}}, Recent: []drops.Record{record}}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); code != http.StatusOK || diff != "" {
			t.Errorf("status %d\n%s", code, diff)
		}
		// Who asks often costs the kernel nothing more.
		before := o.asked
		for range 10 {
			askOnce(t, d)
		}
		if o.asked != before {
			t.Errorf("the data plane was asked %d times for one second", o.asked-before)
		}
		// The kernel counts anew, and nobody asked in between.
		o.set(nil, 5)
		time.Sleep(countEvery * 3 / 2)
		o.set(nil, 1)
		time.Sleep(countEvery)
		synctest.Wait()
		if _, got := askOnce(t, d); got.Counts[0].Packets != 6 {
			t.Errorf("%d packets in all", got.Counts[0].Packets)
		}
		o.set(errors.New("no buffer space"), 0)
		time.Sleep(countEvery)
		if code, _ := askOnce(t, d); code != http.StatusServiceUnavailable {
			t.Errorf("status %d though the data plane does not answer", code)
		}
		o.set(nil, 1)
		// Following fails, and is tried again: the counts are told, and that the
		// packets are not.
		if _, got := askOnce(t, d); len(got.Missing) > 0 {
			t.Errorf("missing is %v", got.Missing)
		}
		close(o.drops)
		time.Sleep(2 * followAgain)
		want.Missing = []drops.Missing{{Node: "node1", Problem: "the packets themselves cannot be followed: the kernel's queue is full"}}
		if code, got := askOnce(t, d); code != http.StatusOK || !slices.Equal(got.Missing, want.Missing) || len(got.Counts) == 0 {
			t.Errorf("status %d: %+v", code, got)
		}
		if code := askToFollow(d); code != http.StatusServiceUnavailable {
			t.Errorf("status %d of following what cannot be followed", code)
		}
		end()
		if code, _ := askOnce(t, d); code != http.StatusServiceUnavailable {
			t.Errorf("status %d without a data plane", code)
		}
		if code := askToFollow(d); code != http.StatusServiceUnavailable {
			t.Errorf("status %d of following without a data plane", code)
		}
	})
}

// One that follows is told of each packet, also when it follows for longer
// than a request may take to come in, and leaves nothing behind.
func TestDropsAreFollowed(t *testing.T) {
	o := &observed{drops: make(chan datapath.Drop)}
	d, end := observe(t, o)
	defer end()
	server := httptest.NewUnstartedServer(d)
	server.Config.ReadTimeout = 50 * time.Millisecond
	server.Start()
	defer server.Close()
	for d.unseen() != nil {
		time.Sleep(time.Millisecond)
	}
	began := time.Now()
	res, err := server.Client().Get(server.URL + "/drops?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(res.Body)
	for time.Since(began) < 4*server.Config.ReadTimeout {
		o.drops <- dropped
		if !lines.Scan() {
			t.Fatalf("following ended after %s: %v", time.Since(began), lines.Err())
		}
		var got drops.Record
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil || got != record {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		time.Sleep(time.Millisecond)
	}
	// One that does not read keeps nobody from adding.
	for range 100_000 {
		o.drops <- dropped
	}
	res.Body.Close()

	// It ends once packets are not seen any more, so that who follows asks why.
	if res, err = server.Client().Get(server.URL + "/drops?follow=true"); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	d.setBlind(errors.New("the kernel's queue is full"))
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Error(err)
	}
}

func TestSeriesAreBounded(t *testing.T) {
	var d denials
	var counts []drops.Count
	for i := range 2 * maxSeries {
		for rule := range 2 {
			counts = append(counts, drops.Count{Rule: fmt.Sprintf("NetworkPolicy default/%d ingress[%d]", i, rule), Direction: plan.Incoming, Packets: 1})
		}
	}
	first := d.byPolicy(counts)
	if n := len(first); n != maxSeries+1 {
		t.Errorf("%d series", n)
	}
	if n := first[drops.Count{Rule: "NetworkPolicy default/0", Direction: plan.Incoming}]; n != 2 {
		t.Errorf("the first policy has %d packets", n)
	}
	if n := first[drops.Count{Rule: other, Direction: plan.Incoming}]; n != 2*maxSeries {
		t.Errorf("the others have %d packets", n)
	}
	// Those that are told apart stay so, whoever denies more.
	last := counts[len(counts)-1]
	last.Packets = 1000
	d.byPolicy([]drops.Count{last})
	again := d.byPolicy(append([]drops.Count{last}, counts[:len(counts)-1]...))
	for k, n := range first {
		if again[k] < n {
			t.Errorf("%s fell from %d to %d", k.Rule, n, again[k])
		}
	}
}

func TestPolicyOfARule(t *testing.T) {
	for rule, want := range map[string]string{
		"NetworkPolicy default/web ingress[0]":         "NetworkPolicy default/web",
		`ClusterNetworkPolicy a egress[2] "rule name"`: "ClusterNetworkPolicy a",
		"NetworkPolicy default/web ingress isolation":  "NetworkPolicy default/web",
		"": unknown, "nonsense": unknown, drops.Other: other,
	} {
		if got := policyOf(rule); got != want {
			t.Errorf("%q is of %q", rule, got)
		}
	}
}

func TestDeniedPacketsAreAMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &observed{drops: make(chan datapath.Drop)}
		o.set(nil, 3)
		d, end := observe(t, o)
		defer end()
		synctest.Wait()
		registry := prometheus.NewRegistry()
		registry.MustRegister(d)
		families, err := registry.Gather()
		if err != nil || len(families) != 2 {
			t.Fatal(families, err)
		}
		if n := len(families[0].GetMetric()); n != len(datapath.Reasons) {
			t.Errorf("%d series of reasons", n)
		}
		for i, words := range [][]string{{"weft_dropped_packets_total", `"spoofed-source"`, "value:1"},
			{"weft_policy_denied_packets_total", `"NetworkPolicy default/web"`, "ingress", "value:3"}} {
			for _, word := range words {
				if text := families[i].String(); !strings.Contains(text, word) {
					t.Errorf("%s lacks %s", text, word)
				}
			}
		}
	})
}
