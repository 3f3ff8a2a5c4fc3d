package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/drops"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
)

// denials is what the agent knows of the packets that policies deny on its
// node, and of those that are dropped for other reasons. It follows them always,
// so that who asks learns of those before, too: data planes tell of some each
// second at most.
type denials struct {
	log  *slog.Logger
	node string
	// plans returns what the data plane does, and what it is being brought to, as far
	// as there is either.
	plans  func() []*plan.Plan
	recent drops.Log

	mu sync.Mutex
	// observer is that of the data plane in use; nil where it tells nothing.
	observer datapath.Observer
	counter  drops.Counter
	counted  time.Time
	// blind is why the packets themselves are not seen, or nil.
	blind error
	// series are the policies that metrics tell apart, those that denied first.
	series map[string]bool
}

const (
	// countEvery is how often packets are counted though nobody asks: what a
	// verdict counted is lost when it leaves the kernel. countAgain is how long
	// what was counted will do for those who ask.
	countEvery = 5 * time.Second
	countAgain = time.Second
	// followAgain is how long to wait before following again what failed.
	followAgain = 5 * time.Second
	// lookAgain is how often to see whether packets are still seen.
	lookAgain = time.Second
	// readTimeout bounds how long one who follows may take to read a record.
	readTimeout = 10 * time.Second
)

// run observes a data plane until ctx ends.
func (d *denials) run(ctx context.Context, o datapath.Observer) {
	d.use(o)
	defer d.use(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for ctx.Err() == nil {
			follows := time.AfterFunc(followAgain, func() { d.setBlind(nil) })
			err := o.Follow(ctx, func(drop datapath.Drop) { d.recent.Add(drops.Attribute(drop, d.plans()...)) })
			follows.Stop()
			if err != nil && ctx.Err() == nil {
				d.log.Warn("cannot follow what is dropped; trying again", "error", err)
				d.setBlind(fmt.Errorf("the packets themselves cannot be followed: %w", err))
			}
			retry.Sleep(ctx, followAgain)
		}
	})
	for ctx.Err() == nil {
		retry.Sleep(ctx, countEvery)
		if _, err := d.counts(); err != nil && ctx.Err() == nil {
			d.log.Warn("cannot count what is dropped; trying again", "error", err)
		}
	}
}

func (d *denials) use(o datapath.Observer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.observer, d.counted, d.blind = o, time.Time{}, nil
}

func (d *denials) setBlind(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blind = err
}

// unseen says why packets are not seen as they are dropped; nil if they are.
func (d *denials) unseen() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.observer == nil {
		return errNotObserved
	}
	return d.blind
}

var errNotObserved = errors.New("the data plane does not tell what it drops, or is not at work yet")

// counts counts what was denied. Where that fails it returns what is known.
func (d *denials) counts() ([]drops.Count, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.observer == nil {
		return d.counter.Counts(), errNotObserved
	}
	if time.Since(d.counted) < countAgain {
		return d.counter.Counts(), nil
	}
	plans := d.plans()
	denied, err := d.observer.Denied()
	dropped, droppedErr := d.observer.Dropped()
	plans = append(plans, d.plans()...) // the kernel may have gone on meanwhile
	if err == nil {
		d.counter.Add(denied, plans...)
	}
	if droppedErr == nil {
		d.counter.AddDropped(dropped, plans...)
	}
	if err = errors.Join(err, droppedErr); err == nil {
		d.counted = time.Now()
	}
	return d.counter.Counts(), err
}

// ServeHTTP answers with a drops.Report, or with each drops.Record from now on
// in a line of its own where follow is asked for.
func (d *denials) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("follow") == "true" {
		d.follow(w, r)
		return
	}
	counts, err := d.counts()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	report := drops.Report{Counts: counts, Recent: d.recent.Recent()}
	if err := d.unseen(); err != nil {
		report.Missing = []drops.Missing{{Node: d.node, Problem: err.Error()}}
	}
	json.NewEncoder(w).Encode(report)
}

// follow tells of each packet until it is not seen any more. Who asks again is
// told why.
func (d *denials) follow(w http.ResponseWriter, r *http.Request) {
	if err := d.unseen(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	records, cancel := d.recent.Follow()
	defer cancel()
	control := http.NewResponseController(w)
	// The server's own deadline would end this as a request that takes too long.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	encode := json.NewEncoder(w)
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for err := control.Flush(); err == nil; err = control.Flush() {
		select {
		case <-r.Context().Done():
			return
		case <-look.C:
			if d.unseen() != nil {
				return
			}
		case record := <-records:
			if err := control.SetWriteDeadline(time.Now().Add(readTimeout)); err != nil {
				return
			}
			if err := encode.Encode(record); err != nil {
				return
			}
		}
	}
}

// maxSeries bounds how many policies are told apart in metrics.
const maxSeries = 1000

var deniedPackets = prometheus.NewDesc("weft_policy_denied_packets_total",
	"Packets that policies denied, by the policy, as NetworkPolicy default/web; other are those beyond the first thousand.",
	[]string{"policy", "direction"}, nil)

var droppedPackets = prometheus.NewDesc("weft_dropped_packets_total",
	"Packets dropped for other reasons than a policy's, by the reason, as spoofed-source.", []string{"reason"}, nil)

// Describe implements prometheus.Collector.
func (d *denials) Describe(c chan<- *prometheus.Desc) {
	c <- deniedPackets
	c <- droppedPackets
}

// Collect implements prometheus.Collector.
func (d *denials) Collect(c chan<- prometheus.Metric) {
	// What is known is as good as it gets; that there was nothing is not known
	// where nothing was counted.
	counts, err := d.counts()
	reasons := make(map[datapath.Reason]uint64)
	if err == nil {
		for _, reason := range datapath.Reasons {
			reasons[reason] = 0
		}
	}
	for _, count := range counts {
		if count.Reason != "" {
			reasons[count.Reason] += count.Packets
		}
	}
	for reason, packets := range reasons {
		c <- prometheus.MustNewConstMetric(droppedPackets, prometheus.CounterValue, float64(packets), string(reason))
	}
	for k, packets := range d.byPolicy(counts) {
		c <- prometheus.MustNewConstMetric(deniedPackets, prometheus.CounterValue, float64(packets), k.Rule, string(k.Direction))
	}
}

// byPolicy joins the counts of the rules of each policy, whose name takes the
// rule's place, and of policies for which there is no room under "other".
func (d *denials) byPolicy(counts []drops.Count) map[drops.Count]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	sums := make(map[drops.Count]uint64)
	for _, c := range counts {
		if c.Reason != "" {
			continue
		}
		policy := policyOf(c.Rule)
		switch {
		case d.series[policy]:
		case len(d.series) < maxSeries:
			if d.series == nil {
				d.series = make(map[string]bool)
			}
			d.series[policy] = true
		default:
			policy = other
		}
		sums[drops.Count{Rule: policy, Direction: c.Direction}] += c.Packets
	}
	return sums
}

// other is the policy of what metrics do not tell apart, unknown that of what
// nobody knows.
const (
	other   = "other"
	unknown = "unknown"
)

// policyOf returns the policy that a rule is of, which the first two words of
// its name are.
func policyOf(rule string) string {
	kind, rest, _ := strings.Cut(rule, " ")
	name, _, _ := strings.Cut(rest, " ")
	switch {
	case rule == drops.Other:
		return other
	case name == "":
		return unknown
	default:
		return kind + " " + name
	}
}
