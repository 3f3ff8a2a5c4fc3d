package grafana

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weftnet/weft/controller"
	"github.com/weftnet/weft/internal/golden"
)

// kind is that of a metric.
type kind string

const (
	counter   kind = "Counter"
	gauge     kind = "Gauge"
	histogram kind = "Histogram"
)

var (
	metricName  = regexp.MustCompile(`\b(?:weft|kubeproxy)_[a-z_]+\b`)
	coreName    = regexp.MustCompile(`\bcoredns_[a-z_]+\b`)
	constructor = regexp.MustCompile(`^New(Counter|Gauge|Histogram)(?:Vec|Func)?$`)
)

// ofCoreDNS are the metrics that name servers have from CoreDNS, as far as they are on the dashboard. That there
// are these, and with which labels, the tests of package dns/server say, which alone knows CoreDNS.
var ofCoreDNS = map[string]kind{
	"coredns_dns_requests_total":             counter,
	"coredns_dns_responses_total":            counter,
	"coredns_dns_request_duration_seconds":   histogram,
	"coredns_cache_hits_total":               counter,
	"coredns_cache_misses_total":             counter,
	"coredns_cache_served_stale_total":       counter,
	"coredns_proxy_request_duration_seconds": histogram,
}

// registered are the metrics of all of Weft's programs, as the calls say that make them, and the labels
// of those that have some. Whatever has the name of a metric, in a file that makes any, must be one of these.
func registered(t *testing.T) (all map[string]kind, labels map[string][]string) {
	t.Helper()
	all, labels = map[string]kind{}, map[string][]string{}
	named := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			return strings.Trim(i.Path.Value, `"`) == "github.com/prometheus/client_golang/prometheus"
		}) {
			return nil
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s := literal(n); metricName.FindString(s) == s && s != "" {
				named[s] = path
			}
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			switch f := call.Fun.(type) {
			case *ast.Ident:
				if s := literal(call.Args[0]); f.Name == "gauge" && s != "" { // a function that calls NewGaugeFunc
					all[s] = gauge
				}
			case *ast.SelectorExpr:
				if s := literal(call.Args[0]); f.Sel.Name == "NewDesc" && s != "" {
					if all[s] = gauge; strings.HasSuffix(s, "_total") {
						all[s] = counter
					}
					labels[s] = literals(call.Args[2])
				}
				made := constructor.FindStringSubmatch(f.Sel.Name)
				options, ok := call.Args[0].(*ast.CompositeLit)
				if made == nil || !ok {
					return true
				}
				for _, e := range options.Elts {
					if pair, ok := e.(*ast.KeyValueExpr); ok && literal(pair.Value) != "" && pair.Key.(*ast.Ident).Name == "Name" {
						all[literal(pair.Value)] = kind(made[1])
						if len(call.Args) > 1 {
							labels[literal(pair.Value)] = literals(call.Args[1])
						}
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range named {
		if all[name] == "" {
			t.Errorf("%s names %s, and it is not seen which call makes it: teach registered", path, name)
		}
	}
	return all, labels
}

// literal is what a string in a program is; empty for all else.
func literal(n ast.Node) string {
	if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
		text, _ := strconv.Unquote(s.Value)
		return text
	}
	return ""
}

// literals are the strings of a list in a program; nil for all else.
func literals(n ast.Node) (all []string) {
	if list, ok := n.(*ast.CompositeLit); ok {
		for _, e := range list.Elts {
			all = append(all, literal(e))
		}
	}
	return all
}

// dashboard is what is looked at of weft.json.
type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []panel
}

type panel struct {
	ID          int
	Type, Title string
	Datasource  struct{ UID string }
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ UID string }
	}
}

func read(t *testing.T) (d dashboard) {
	t.Helper()
	data, err := os.ReadFile("weft.json")
	if err != nil {
		t.Fatal(err)
	}
	var variable struct {
		Templating struct{ List []map[string]any }
	}
	if err := json.Unmarshal(data, &variable); err != nil {
		t.Fatal(err)
	}
	// The query of another variable than that of data sources is an object.
	for _, v := range variable.Templating.List {
		if query, ok := v["query"].(string); ok || v["type"] != "datasource" {
			d.Templating.List = append(d.Templating.List, struct{ Name, Type, Query string }{v["name"].(string), v["type"].(string), query})
		}
	}
	rest := struct {
		UID, Title *string
		Panels     *[]panel
	}{&d.UID, &d.Title, &d.Panels}
	if err := json.Unmarshal(data, &rest); err != nil {
		t.Fatal(err)
	}
	return d
}

// Each metric is on the dashboard, and of others' those that are meant; a counter as a rate, and a histogram by its buckets
// or its count, in the right unit.
func TestMetrics(t *testing.T) {
	all, _ := registered(t)
	maps.Copy(all, ofCoreDNS)
	shown := map[string]bool{}
	for _, p := range read(t).Panels {
		for _, target := range p.Targets {
			found := append(metricName.FindAllStringIndex(target.Expr, -1), coreName.FindAllStringIndex(target.Expr, -1)...)
			if len(found) == 0 {
				t.Errorf("%s: %s is of no metric", p.Title, target.Expr)
			}
			for _, at := range found {
				name := target.Expr[at[0]:at[1]]
				shown[check(t, all, p, target.Expr, name, target.Expr[:at[0]])] = true
			}
		}
	}
	for name := range all {
		if !shown[name] {
			t.Errorf("%s is in no panel", name)
		}
	}
}

// check holds the use of a name to the metric that it is of, which it returns. before is what stands
// before it.
func check(t *testing.T, all map[string]kind, p panel, expr, name, before string) string {
	t.Helper()
	unit, rated := p.FieldConfig.Defaults.Unit, strings.HasSuffix(before, "rate(")
	if k, is := all[name]; is {
		switch {
		case k == histogram:
			t.Errorf("%s: %s is a histogram, which has no value of its own", p.Title, name)
		case rated != (k == counter):
			t.Errorf("%s: a rate is for counters, and for them alone: %s", p.Title, expr)
		case k == counter:
			units := []string{"ops", "reqps"}
			if strings.Contains(name, "_packets_") {
				units = []string{"pps"}
			} else if strings.HasSuffix(name, "_seconds_total") {
				units = []string{"none"}
			}
			if !slices.Contains(units, unit) {
				t.Errorf("%s: the unit of %s is one of %q, not %q", p.Title, expr, units, unit)
			}
		case strings.HasSuffix(name, "_seconds") != (unit == "s"), strings.HasSuffix(name, "_bytes") != (unit == "bytes"):
			t.Errorf("%s: %s is in %q", p.Title, name, unit)
		case strings.HasSuffix(name, "_timestamp_seconds") && !strings.HasSuffix(before, "time() - "):
			t.Errorf("%s: %s is shown as the time since", p.Title, name)
		}
		return name
	}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		of, has := strings.CutSuffix(name, suffix)
		if !has || all[of] != histogram {
			continue
		}
		switch {
		case !rated:
			t.Errorf("%s: of %s a rate is shown", p.Title, name)
		case suffix == "_bucket" && (unit != "s" || !strings.HasPrefix(expr, "histogram_quantile(") || !strings.Contains(before, "by (le")):
			t.Errorf("%s: buckets are for quantiles by le, in seconds: %s in %q", p.Title, expr, unit)
		case suffix == "_count" && unit != "reqps" && unit != "ops":
			t.Errorf("%s: %s is in %q", p.Title, expr, unit)
		}
		return of
	}
	t.Errorf("%s: there is no metric %s", p.Title, name)
	return name
}

// What a controller registers is among what is read from the source.
func TestControllerRegisters(t *testing.T) {
	all, _ := registered(t)
	w := httptest.NewRecorder()
	controller.New(controller.Config{}).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	seen := 0
	for line := range strings.Lines(w.Body.String()) {
		if name, is := strings.CutPrefix(line, "# TYPE weft_"); is {
			name, kind, _ := strings.Cut(strings.TrimSpace("weft_"+name), " ")
			if seen++; !strings.EqualFold(string(all[name]), kind) {
				t.Errorf("%s is a %s, and in the source a %q", name, kind, all[name])
			}
		}
	}
	if seen == 0 {
		t.Error("it tells of none of its metrics")
	}
}

// Panels are of rows, have names and ids of their own, lie beside each other, and go by the
// variable data source.
func TestPanels(t *testing.T) {
	d := read(t)
	if d.UID == "" || d.Title == "" || len(d.Templating.List) == 0 || d.Templating.List[0].Type != "datasource" || d.Templating.List[0].Query != "prometheus" {
		t.Fatalf("it is %q, %q, with the variables %v", d.UID, d.Title, d.Templating.List)
	}
	const source = "${datasource}"
	var rows []string
	ids, cells := map[int]bool{}, map[[2]int]string{}
	label := regexp.MustCompile(`{{(\w+)}}`)
	for i, p := range d.Panels {
		if ids[p.ID] || p.ID <= 0 || p.Title == "" {
			t.Errorf("panel %d has the id %d and the title %q", i, p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies on %s, or outside", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if len(rows) == 0 || p.Datasource.UID != source || len(p.Targets) == 0 {
			t.Errorf("%s is of no row, asks nothing, or asks %q", p.Title, p.Datasource.UID)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.Datasource.UID != source || target.LegendFormat == "" {
				t.Errorf("%s: target %q asks %q, and is called %q", p.Title, target.RefID, target.Datasource.UID, target.LegendFormat)
			}
			refs[target.RefID] = true
			if strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") || !strings.Contains(target.Expr, `{instance=~"$instance"}`) {
				t.Errorf("%s: %s has not all its parentheses, or is of all instances", p.Title, target.Expr)
			}
			for _, l := range label.FindAllStringSubmatch(target.LegendFormat, -1) {
				by, _, _ := strings.Cut(target.Expr[max(0, strings.Index(target.Expr, "by (")):], ")")
				if strings.Contains(target.Expr, "by (") && !strings.Contains(by, l[1]) {
					t.Errorf("%s: %s has no label %s", p.Title, target.Expr, l[1])
				}
			}
		}
	}
	if want := []string{"Nodes and plan", "CNI", "Policies", "Services", "Names", "Announcement", "Controller"}; !slices.Equal(rows, want) {
		t.Errorf("the rows are %q; expected %q", rows, want)
	}
}

// The chart has the same dashboard, as Helm reads no file outside of it.
func TestChartHasIt(t *testing.T) {
	data, err := os.ReadFile("weft.json")
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, "../chart/files/grafana/weft.json", data)
}
