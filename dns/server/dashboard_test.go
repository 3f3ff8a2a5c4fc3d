package server

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/dns/journal"
)

// TestDashboard asks a name server for names inside and outside: each metric of CoreDNS's that the dashboard
// shows is there, and has the labels by which it is shown.
func TestDashboard(t *testing.T) {
	s := asking(t, upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.1") }), 60)
	s.connections, s.records = newShare(1, 1), journal.Follow("none", nil)
	var err error
	if s.metrics, err = newMetrics(s, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	set := settings()
	s.settings.Store(set)
	s.setZone(set)
	for _, name := range []string{"none.default.svc.cluster.local", "www.example", "www.example"} {
		s.lookUp(t, name)
	}
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, f := range families {
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels[f.GetName()] = append(labels[f.GetName()], l.GetName())
		}
	}
	data, err := os.ReadFile("../../deploy/grafana/weft.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	metric, by := regexp.MustCompile(`\bcoredns_[a-z_]+\b`), regexp.MustCompile(`by \(([a-z, ]+)\)`)
	shown := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			name := strings.TrimSuffix(metric.FindString(target.Expr), "_bucket")
			if name == "" {
				continue
			}
			shown++
			// One that has another meaning cannot be there beside it.
			if prometheus.DefaultRegisterer.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "Of nothing."})) == nil {
				t.Errorf("there is no metric %s", name)
			}
			has, told := labels[name]
			if !told && name != "coredns_cache_served_stale_total" { // nothing stale was given
				t.Errorf("%s says nothing of names that were asked for", name)
			}
			for _, l := range strings.Split(by.FindStringSubmatch(target.Expr)[1], ", ") {
				if told && l != "le" && l != "instance" && !slices.Contains(has, l) {
					t.Errorf("%s has the labels %q, and is shown by %s", name, has, l)
				}
			}
		}
	}
	if shown == 0 {
		t.Error("the dashboard shows none")
	}
}
