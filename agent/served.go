package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/service/counts"
)

// served is what the agent knows of what Services were given, refused and dropped on its node. The
// kernel counts, and is asked when somebody wants to know.
type served struct {
	// plan returns what the node does, or nil.
	plan func() *plan.Plan

	mu sync.Mutex
	// counter is that of the data plane in use; nil where it does not count.
	counter datapath.ServiceCounter
	// last is what was counted at a time.
	last datapath.ServiceCounts
	at   time.Time
	// sums are those of Services, which grow, by "namespace/name"; Services beyond maxSeries
	// are one, named other. frontends is what each frontend had counted by then.
	sums      map[string]counts.Outcome
	frontends map[plan.ServiceKey]datapath.FrontendCount
}

// run counts by a data plane until ctx ends.
func (s *served) run(ctx context.Context, c datapath.ServiceCounter) {
	s.use(c)
	defer s.use(nil)
	<-ctx.Done()
}

func (s *served) use(c datapath.ServiceCounter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Another one begins to count anew.
	s.counter, s.at, s.frontends = c, time.Time{}, nil
}

var errNotCounted = errors.New("the data plane does not count what Services do, or is not at work yet")

// count reads what was counted, which the caller has locked. What was read within countAgain will do.
func (s *served) count() error {
	if s.counter == nil {
		return errNotCounted
	}
	if time.Since(s.at) < countAgain {
		return nil
	}
	now, err := s.counter.Counts()
	if err != nil {
		return fmt.Errorf("cannot read what Services have counted: %w", err)
	}
	s.last, s.at = now, time.Now()
	return nil
}

// serviceOrigin begins the origin of a Service's entries.
const serviceOrigin = "Service "

// of is what is counted of a Service by a plan.
func (s *served) of(p *plan.Plan, service string) counts.Report {
	r := counts.Report{Frontends: []counts.Frontend{}, Backends: []counts.Backend{}}
	sets := map[string]bool{}
	for k, of := range p.Services.All() {
		if of.Origin != serviceOrigin+service || of.Here {
			continue
		}
		f := counts.Frontend{Address: k.Address, From: string(k.From), Outcome: outcomeOf(s.last.Frontends[k])}
		if k.Protocol != plan.AnyProtocol {
			f.Port = fmt.Sprintf("%d/%s", k.Port, k.Protocol)
		}
		r.Frontends = append(r.Frontends, f)
		sets[of.Set] = of.Set != ""
	}
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		if !sets[set] {
			continue
		}
		for k := range p.BackendsOf(plan.DefaultNetwork, set) {
			at := plan.BackendKey{Network: plan.DefaultNetwork, Set: set, Address: k.Address, Port: k.Port}
			r.Backends = append(r.Backends, counts.Backend{Set: set, At: netip.AddrPortFrom(k.Address, k.Port), Given: s.last.Backends[at]})
		}
	}
	return r
}

func outcomeOf(f datapath.FrontendCount) counts.Outcome {
	return counts.Outcome{Given: f.Given, Refused: f.Refused, Dropped: f.Dropped, ForOthers: f.ForOthers}
}

// ServeHTTP answers with a counts.Report.
func (s *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	report, err := s.report(r.FormValue(counts.ServiceParameter))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(report)
}

func (s *served) report(service string) (counts.Report, error) {
	p := s.plan()
	if p == nil {
		return counts.Report{}, errors.New("no plan yet")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.count(); err != nil {
		return counts.Report{}, err
	}
	return s.of(p, service), nil
}

// What Services count is served at a path of its own, as tenants make as many Services as they like,
// and not everybody wants to keep what each does.
const servicesMetrics = "/metrics/services"

var (
	givenConnections = prometheus.NewDesc("weft_service_connections_total",
		"New connections that were given a backend of a Service, by namespace/name; other are those beyond the first thousand.", []string{"service"}, nil)
	refusedPackets = prometheus.NewDesc("weft_service_refused_packets_total",
		"Packets to a Service whose sender was told that there is no backend.", []string{"service"}, nil)
	undeliveredPackets = prometheus.NewDesc("weft_service_dropped_packets_total",
		"Packets to a Service that were dropped, as there is no backend on hand or the sender may not use the address, by the reason.", []string{"service", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (s *served) Describe(c chan<- *prometheus.Desc) {
	c <- givenConnections
	c <- refusedPackets
	c <- undeliveredPackets
}

// Collect implements prometheus.Collector. Where nothing could be counted, it tells nothing.
func (s *served) Collect(c chan<- prometheus.Metric) {
	p := s.plan()
	s.mu.Lock()
	defer s.mu.Unlock()
	if p == nil || s.count() != nil {
		return
	}
	s.sum(p)
	for service, o := range s.sums {
		c <- prometheus.MustNewConstMetric(givenConnections, prometheus.CounterValue, float64(o.Given), service)
		c <- prometheus.MustNewConstMetric(refusedPackets, prometheus.CounterValue, float64(o.Refused), service)
		c <- prometheus.MustNewConstMetric(undeliveredPackets, prometheus.CounterValue, float64(o.Dropped), service, string(datapath.NoBackend))
		c <- prometheus.MustNewConstMetric(undeliveredPackets, prometheus.CounterValue, float64(o.ForOthers), service, string(datapath.NotForClient))
	}
}

// sum adds what was counted since to the sums of Services, and forgets Services that are gone.
func (s *served) sum(p *plan.Plan) {
	there, grown := map[string]bool{}, map[string]counts.Outcome{}
	for k, of := range p.Services.All() {
		service, is := strings.CutPrefix(of.Origin, serviceOrigin)
		if !is {
			continue
		}
		there[service] = true
		now := s.last.Frontends[k]
		grown[service] = grown[service].Plus(grownBy(s.frontends[k], now))
	}
	s.frontends = s.last.Frontends
	if s.sums == nil {
		s.sums = map[string]counts.Outcome{}
	}
	for service := range s.sums {
		if !there[service] && service != other {
			delete(s.sums, service)
		}
	}
	for _, service := range slices.Sorted(maps.Keys(grown)) {
		more := grown[service]
		if _, known := s.sums[service]; !known && len(s.sums) >= maxSeries {
			service = other
		}
		s.sums[service] = s.sums[service].Plus(more)
	}
}

// grownBy is by how much a frontend's counts grew. One that is less than it was began anew.
func grownBy(before, now datapath.FrontendCount) counts.Outcome {
	more := func(before, now uint64) uint64 {
		if now < before {
			return now
		}
		return now - before
	}
	return counts.Outcome{Given: more(before.Given, now.Given), Refused: more(before.Refused, now.Refused),
		Dropped: more(before.Dropped, now.Dropped), ForOthers: more(before.ForOthers, now.ForOthers)}
}
