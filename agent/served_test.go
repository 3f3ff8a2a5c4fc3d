package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/service/counts"
)

// counting is a data plane that counts what a test says.
type counting struct {
	datapath.ServiceCounts
	err error
}

func (c *counting) Counts() (datapath.ServiceCounts, error) { return c.ServiceCounts, c.err }

func servedFront(i int) plan.ServiceKey {
	return plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.AddrFrom4([4]byte{10, 3, byte(i >> 8), byte(i)}), Protocol: plan.TCP, Port: 80}
}

// servingPlan has a Service of each number, with one frontend.
func servingPlan(numbers ...int) *plan.Plan {
	b := plan.NewBuilder(nil)
	for _, i := range numbers {
		b.PutService(servedFront(i), plan.Service{Set: fmt.Sprintf("shop/s%d", i), Origin: fmt.Sprintf("Service shop/s%d", i)})
		b.PutBackend(plan.BackendKey{Network: plan.DefaultNetwork, Set: fmt.Sprintf("shop/s%d", i), Address: netip.MustParseAddr("10.1.1.2"), Port: 8080}, plan.Backend{Weight: 1})
	}
	return b.Build()
}

func get(h http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// Who asks for a Service is told what its frontends and backends have counted, and of nothing that
// is not known.
func TestServedAnswers(t *testing.T) {
	p := servingPlan(1, 2)
	s := &served{plan: func() *plan.Plan { return p }}
	ask := func() (int, string) { return get(s, counts.Path+"?"+counts.ServiceParameter+"=shop/s1") }
	if code, said := ask(); code != http.StatusServiceUnavailable || !strings.Contains(said, errNotCounted.Error()) {
		t.Errorf("nobody counts, and it says %d %q", code, said)
	}
	c := &counting{}
	c.Frontends = map[plan.ServiceKey]datapath.FrontendCount{servedFront(1): {Given: 7, ForOthers: 2}, servedFront(2): {Given: 9}}
	s.use(c)
	_, said := ask()
	report, err := counts.Read(strings.NewReader(said))
	if want := []counts.Frontend{{Address: servedFront(1).Address, Port: "80/tcp", Outcome: counts.Outcome{Given: 7, ForOthers: 2}}}; err != nil || !slices.Equal(report.Frontends, want) {
		t.Errorf("it tells of frontends %v, %v; expected %v", report.Frontends, err, want)
	}
	if want := []counts.Backend{{Set: "shop/s1", At: netip.MustParseAddrPort("10.1.1.2:8080")}}; !slices.Equal(report.Backends, want) {
		t.Errorf("it tells of backends %v; expected %v", report.Backends, want)
	}
	if _, err := counts.Read(strings.NewReader(said[:len(said)/2])); err == nil {
		t.Error("half an answer is none")
	}
	c.err, s.at = errors.New("no table"), time.Time{}
	if code, said := ask(); code != http.StatusServiceUnavailable || !strings.Contains(said, "no table") {
		t.Errorf("the kernel does not tell, and it says %d %q", code, said)
	}
}

// What metrics tell of a Service grows, though the kernel may begin anew, and of many Services some are one.
func TestServedMetrics(t *testing.T) {
	p := servingPlan(1, 2)
	s := &served{plan: func() *plan.Plan { return p }}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	c := &counting{}
	s.use(c)
	shows := func(given map[int]uint64, want ...string) {
		t.Helper()
		c.Frontends = map[plan.ServiceKey]datapath.FrontendCount{}
		for i, n := range given {
			c.Frontends[servedFront(i)] = datapath.FrontendCount{Given: n}
		}
		s.at = time.Time{}
		_, said := get(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), servicesMetrics)
		var lines []string
		for line := range strings.Lines(said) {
			if strings.HasPrefix(line, "weft_service_connections_total{") {
				lines = append(lines, strings.TrimSpace(strings.TrimPrefix(line, "weft_service_connections_total")))
			}
		}
		if len(want) > 0 && !slices.Equal(lines, want) {
			t.Errorf("it tells %q; expected %q", lines, want)
		}
		if len(lines) > maxSeries+1 {
			t.Errorf("it tells of %d Services", len(lines))
		}
	}
	shows(map[int]uint64{1: 5}, `{service="shop/s1"} 5`, `{service="shop/s2"} 0`)
	shows(map[int]uint64{1: 8, 2: 1}, `{service="shop/s1"} 8`, `{service="shop/s2"} 1`)
	shows(map[int]uint64{2: 1}, `{service="shop/s1"} 8`, `{service="shop/s2"} 1`)
	shows(map[int]uint64{1: 2, 2: 1}, `{service="shop/s1"} 10`, `{service="shop/s2"} 1`)
	p = servingPlan(2)
	shows(map[int]uint64{2: 4}, `{service="shop/s2"} 4`)
	var many []int
	given := map[int]uint64{}
	for i := range 3 * maxSeries {
		many, given[i] = append(many, i), 1
	}
	p = servingPlan(many...)
	shows(given)
	if s.sums[other].Given != uint64(2*maxSeries) {
		t.Errorf("the rest is given %d connections", s.sums[other].Given)
	}
}
