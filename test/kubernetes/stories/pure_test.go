package stories

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
	"github.com/weftnet/weft/test/kubernetes/traffic"
)

func TestInventoriesDifferByWhatCameAndWent(t *testing.T) {
	before := ParseInventory("link eth0\nroute6 fe80::/64 dev eth0 expires 20sec\nlink  old  \n")
	after := ParseInventory("link weft0\nroute6 fe80::/64 dev eth0 expires 10sec\n\nlink eth0\n")
	more, less := after.Since(before)
	if !slices.Equal(more, []string{"link weft0"}) || !slices.Equal(less, []string{"link old"}) {
		t.Errorf("more %q, less %q", more, less)
	}
}

// plumbed is a node on which all is in order.
func plumbed(t *testing.T) Plumbing {
	t.Helper()
	link := podlink.HostName("c1", "eth0")
	p, err := plan.Parse("node node1\npool default 10.1.0.0/24 gateway 10.1.0.1\n" +
		"endpoint " + link + " network default name shop/web addresses 10.1.0.2\n")
	if err != nil {
		t.Fatal(err)
	}
	journal, err := ParseJournal(`{"op":"weft-journal","version":1}
{"op":"attach","attachment":{"containerID":"c0","ifname":"eth0","namespace":"shop","pod":"old","hostInterface":"weftx","addresses":["10.1.0.9"],"phase":"pending","created":"2026-01-01T00:00:00Z"}}
{"op":"attach","attachment":{"containerID":"c1","ifname":"eth0","namespace":"shop","pod":"web","hostInterface":"` + link + `","addresses":["10.1.0.2"],"phase":"pending","created":"2026-01-01T00:00:00Z"}}
{"op":"ready","key":{"containerID":"c1","ifname":"eth0"}}
{"op":"release","key":{"containerID":"c0","ifname":"eth0"}}
`)
	if err != nil {
		t.Fatal(err)
	}
	return Plumbing{
		Pods:    map[string][]netip.Addr{"shop/web": {netip.MustParseAddr("10.1.0.2")}},
		Journal: journal, Plan: p, Links: []string{"lo", "eth0", "weft0", link},
		Routes: ParseRoutes("default via 172.30.0.1 dev eth0\n10.1.0.2 dev " + link + " proto 87\nlocal 10.1.0.1 dev weft0 table local\n10.1.1.0/24 via 10.1.1.0 dev weft-vxlan\n"),
	}
}

func TestPlumbingNamesEachFault(t *testing.T) {
	if faults := plumbed(t).Faults(); len(faults) > 0 {
		t.Fatalf("a node in order has faults: %q", faults)
	}
	for name, test := range map[string]struct {
		spoil func(*Plumbing)
		says  string
	}{
		"a pod too many":     {func(p *Plumbing) { p.Pods["shop/db"] = []netip.Addr{netip.MustParseAddr("10.1.0.3")} }, "pod shop/db"},
		"a pod too few":      {func(p *Plumbing) { clear(p.Pods) }, "no pod shop/web"},
		"an address":         {func(p *Plumbing) { p.Pods["shop/web"][0] = netip.MustParseAddr("10.1.0.3") }, "10.1.0.3"},
		"an interface left":  {func(p *Plumbing) { p.Links = append(p.Links, podlink.HostName("c9", "eth0")) }, "belongs to no pod"},
		"an interface gone":  {func(p *Plumbing) { p.Links = nil }, "is not there"},
		"a route left":       {func(p *Plumbing) { p.Routes = append(p.Routes, netip.MustParsePrefix("10.1.0.7/32")) }, "10.1.0.7"},
		"a route gone":       {func(p *Plumbing) { p.Routes = nil }, "no route"},
		"a plan without it":  {func(p *Plumbing) { p.Plan = &plan.Plan{} }, "plan"},
		"a pending address":  {func(p *Plumbing) { p.Journal[0].Phase = ipam.Pending }, "pending"},
		"a pod held twice":   {func(p *Plumbing) { p.Journal = append(p.Journal, p.Journal[0]) }, "shop/web has"},
		"an unknown address": {func(p *Plumbing) { p.Journal[0].Addresses = nil }, "journal"},
	} {
		p := plumbed(t)
		test.spoil(&p)
		if faults := strings.Join(p.Faults(), "\n"); !strings.Contains(faults, test.says) {
			t.Errorf("%s: the faults are %q", name, faults)
		}
	}
}

func TestAJournalThatIsNoneIsRefused(t *testing.T) {
	if a, err := ParseJournal("x"); err == nil {
		t.Errorf("it is %v", a)
	}
}

const metricsText = `# TYPE weft_cni_seconds histogram
weft_cni_seconds_bucket{command="ADD",result="ok",le="0.01"} 2
weft_cni_seconds_bucket{command="ADD",result="ok",le="0.02"} 4
weft_cni_seconds_bucket{command="ADD",result="ok",le="+Inf"} 5
weft_cni_seconds_sum{command="ADD",result="ok"} 0.1
weft_cni_seconds_count{command="ADD",result="ok"} 5
weft_cni_seconds_bucket{command="DEL",result="ok",le="0.01"} 7
weft_cni_seconds_bucket{command="DEL",result="ok",le="+Inf"} 7
weft_cni_seconds_sum{command="DEL",result="ok"} 9
weft_cni_seconds_count{command="DEL",result="ok"} 7
# TYPE weft_api_requests_total counter
weft_api_requests_total{verb="get",resource="pods",code="200"} 3
weft_api_requests_total{verb="get",resource="pods",code="404"} 2
weft_api_requests_total{verb="watch",resource="nodes",code="200"} 1
`

func TestMetrics(t *testing.T) {
	m, err := ParseMetrics(metricsText)
	if err != nil {
		t.Fatal(err)
	}
	adds := m.Durations("weft_cni_seconds", map[string]string{"command": "ADD"})
	if adds.Count != 5 || adds.Mean() != 20*time.Millisecond {
		t.Errorf("the ADDs are %+v", adds)
	}
	for q, want := range map[float64]time.Duration{0.2: 5 * time.Millisecond, 0.4: 10 * time.Millisecond, 0.6: 15 * time.Millisecond, 1: 20 * time.Millisecond} {
		if got := adds.Quantile(q); got.Round(time.Microsecond) != want {
			t.Errorf("quantile %g is %s, not %s", q, got, want)
		}
	}
	if none := adds.Since(adds); none.Count != 0 || none.Mean() != 0 {
		t.Errorf("since now: %+v", none)
	}
	if n := m.Value("weft_api_requests_total", map[string]string{"verb": "get"}); n != 5 {
		t.Errorf("%g requests", n)
	}
	each := m.Each("weft_api_requests_total", "verb", "resource")
	if got := Calls(map[string]float64{"get pods": 1}, each); got != "4 get pods, 1 watch nodes" {
		t.Errorf("the calls are %q", got)
	}
	if _, err := ParseMetrics("{"); err == nil {
		t.Error("nonsense is read")
	}
}

func TestPercentile(t *testing.T) {
	all := []time.Duration{4, 1, 3, 2}
	for q, want := range map[float64]time.Duration{0: 1, 0.25: 1, 0.5: 2, 0.51: 3, 0.99: 4, 1: 4} {
		if got := Percentile(all, q); got != want {
			t.Errorf("percentile %g is %d, not %d", q, got, want)
		}
	}
	if Percentile(nil, 0.5) != 0 {
		t.Error("there is a percentile of nothing")
	}
}

func at(second int, c traffic.Counts, worst float64) traffic.Report {
	return traffic.Report{Time: time.Unix(int64(second), 0), Counts: c, Worst: worst}
}

func TestASpanIsJudgedByWhatHappenedInIt(t *testing.T) {
	reports := []traffic.Report{
		at(1, traffic.Counts{Sent: 1000, Answered: 990, Lost: 10, Resets: 1}, 900),
		at(2, traffic.Counts{Sent: 2000, Answered: 1990, Lost: 10, Resets: 1}, 5),
		at(4, traffic.Counts{Sent: 4000, Answered: 3980, Lost: 10, Resets: 1}, 7),
		at(5, traffic.Counts{Sent: 5000, Answered: 4900, Lost: 11, Resets: 2}, 1),
	}
	calm, err := SpanOf(reports, time.Unix(1, 5), time.Unix(3, 0))
	if err != nil {
		t.Fatal(err)
	}
	if calm.Sent != 3000 || calm.Worst != 7*time.Millisecond || calm.Silence != 2*time.Second || len(calm.Faults(1000)) > 0 {
		t.Errorf("the calm span is %+v, %q", calm, calm.Faults(1000))
	}
	if faults := calm.Faults(2000); len(faults) != 1 || !strings.Contains(faults[0], "not 2000") {
		t.Errorf("at half the rate the faults are %q", faults)
	}
	broken, err := SpanOf(reports, time.Unix(4, 0), time.Unix(5, 0))
	if err != nil {
		t.Fatal(err)
	}
	if faults := broken.Faults(1000); len(faults) != 1 || !strings.Contains(faults[0], "1 of 1000 requests lost") {
		t.Errorf("the faults are %q", faults)
	}
	for worst, faults := range map[float64]int{1000: 0, 1001: 1} {
		reports[2].Worst = worst
		slow, err := SpanOf(reports, time.Unix(1, 5), time.Unix(3, 0))
		if err != nil {
			t.Fatal(err)
		}
		if got := slow.Faults(1000); len(got) != faults || faults > 0 && !strings.Contains(got[0], "an answer took 1.001s") {
			t.Errorf("where an answer took %g ms the faults are %q", worst, got)
		}
	}
	for _, span := range [][2]int64{{0, 2}, {2, 6}} {
		if s, err := SpanOf(reports, time.Unix(span[0], 0), time.Unix(span[1], 0)); err == nil {
			t.Errorf("reports that do not cover %v give %+v", span, s)
		}
	}
}

func TestLoadsBetweenNodes(t *testing.T) {
	for _, test := range []struct{ nodes, addresses, rate, held int }{{2, 1, 2000, 100}, {3, 2, 1500, 17}, {4, 2, 1334, 9}} {
		rate, held := betweenNodes(test.nodes, test.addresses, 1000, 200)
		if rate != test.rate || held != test.held {
			t.Errorf("%d nodes with pods of %d addresses: %d requests a second and %d connections to each address, not %d and %d",
				test.nodes, test.addresses, rate, held, test.rate, test.held)
		}
	}
}

func TestReportsAreReadAsWritten(t *testing.T) {
	reports, err := ParseReports(`{"time":"2026-01-01T00:00:00Z","sent":5,"answered":4,"lost":1,"resets":0,"reconnects":0,"worst":1.5,"errors":["x"]}` + "\n")
	if err != nil || len(reports) != 1 || reports[0].Sent != 5 || reports[0].Worst != 1.5 || reports[0].Lost != 1 {
		t.Errorf("%+v, %v", reports, err)
	}
	if _, err := ParseReports("error: x\n"); err == nil {
		t.Error("nonsense is read")
	}
}
