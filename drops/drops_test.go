package drops

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// parseDrops reads lines of direction, or reason and perhaps @ and a peer, interface, source, destination and
// protocol; each is a second after the one before.
func parseDrops(t *testing.T, text string) (all []datapath.Drop) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var d datapath.Drop
		var direction, source, destination, protocol string
		if _, err := fmt.Sscan(line, &direction, &d.Interface, &source, &destination, &protocol); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		from, to := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
		d.Time, d.Network = noon.Add(time.Duration(len(all))*time.Second), plan.DefaultNetwork
		reason, peer, _ := strings.Cut(direction, "@")
		if d.Reason = datapath.Reason(reason); !slices.Contains(datapath.Reasons, d.Reason) {
			d.Reason, d.Direction = "", plan.Direction(direction)
		}
		if peer != "" {
			d.Peer = netip.MustParseAddr(peer)
		}
		d.Source, d.SourcePort, d.Destination, d.Port = from.Addr(), from.Port(), to.Addr(), to.Port()
		var err error
		if d.Protocol, err = plan.ParseProtocol(protocol); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

func parsePlan(t *testing.T, text string) *plan.Plan {
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAttribute(t *testing.T) {
	golden.Archives(t, "testdata/attribute*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		p := parsePlan(t, string(files[0].Data))
		var lines, encoded strings.Builder
		if err := PrintTitles(&lines); err != nil {
			t.Fatal(err)
		}
		for _, d := range parseDrops(t, string(files[1].Data)) {
			r := Attribute(d, p)
			if err := r.Print(&lines, time.UTC); err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			var again Record
			if err := json.Unmarshal(b, &again); err != nil || again != r {
				t.Errorf("%s is read as %+v: %v", b, again, err)
			}
			fmt.Fprintf(&encoded, "%s\n", b)
		}
		return append(files[:2:2], txtar.File{Name: "lines", Data: []byte(lines.String())}, txtar.File{Name: "json", Data: []byte(encoded.String())})
	})
}

// A pod sends as soon as it may, before the change that lets it is done: lines and counts
// name it all the same, and say the same of it.
func TestWhoHasJustCome(t *testing.T) {
	doing, coming := parsePlan(t, "node node1"), parsePlan(t, "node node1\nendpoint weft1 network default addresses 10.1.1.2 name default/web\nroute default 10.1.1.2/32 endpoint weft1")
	d := parseDrops(t, "ingress weft1 10.1.1.2:4711 10.1.1.9:22 tcp")[0]
	d.Reason = datapath.Discovery
	for _, plans := range [][]*plan.Plan{{doing, coming}, {coming}, {coming, doing}} {
		r := Attribute(d, plans...)
		var c Counter
		c.AddDropped(map[datapath.Dropped]uint64{{Reason: d.Reason, Interface: d.Interface}: 1}, plans...)
		want := Count{Reason: datapath.Discovery, Direction: plan.Outgoing, From: "default/web", Packets: 1}
		if got := c.Counts(); len(got) != 1 || got[0] != want {
			t.Errorf("counted is %+v", got)
		}
		if got := (Count{Reason: r.Reason, Direction: r.Direction, From: r.From, Packets: 1}); got != want || r.Source.Pod != "default/web" {
			t.Errorf("the line is %+v", r)
		}
	}
}

// What pods send in the ordinary course is counted and does not hide the rest.
func TestDiscoveryHidesNothing(t *testing.T) {
	discovery := Record{Time: noon, Node: "node1", Direction: plan.Outgoing, Reason: datapath.Discovery, From: "default/web", Protocol: "icmpv6"}
	spoofed := discovery
	spoofed.Reason = datapath.SpoofedSource
	var text strings.Builder
	if err := (Report{Recent: []Record{discovery, spoofed, discovery}}).Print(&text, time.UTC, All); err != nil {
		t.Fatal(err)
	}
	if got := text.String(); strings.Count(got, string(datapath.SpoofedSource)+":") != 1 || strings.Contains(got, string(datapath.Discovery)+":") ||
		!strings.HasSuffix(got, "\n\nPackets of discovery are shown one by one with -f and -o json alone: 2.\n") {
		t.Errorf("it says\n%s", got)
	}
}

// Before there is a plan, a record says what the packet says.
func TestAttributeWithoutAPlan(t *testing.T) {
	d := parseDrops(t, "ingress weft1 10.1.1.3:4711 10.1.1.2:22 tcp")[0]
	want := Record{Time: noon, Network: plan.DefaultNetwork, Direction: plan.Incoming, Protocol: "tcp",
		Source: End{Address: d.Source, Port: 4711}, Destination: End{Address: d.Destination, Port: 22}}
	if got := Attribute(d); got != want {
		t.Errorf("got %+v", got)
	}
}

// Agents that knew one network alone do not say which it is.
func TestRecordsOfOneNetwork(t *testing.T) {
	a := netip.MustParseAddr("10.1.1.2")
	for text, want := range map[string]string{`{}`: plan.DefaultNetwork, `{"network":"default"}`: plan.DefaultNetwork, `{"network":"red"}`: "red"} {
		var r Record
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		if got := r.In(a); got != (plan.Address{Network: want, IP: a}) {
			t.Errorf("%s: got %v, want network %s", text, got, want)
		}
	}
}

func TestReport(t *testing.T) {
	golden.Archives(t, "testdata/report.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var reports []Report
		for _, f := range files {
			if strings.HasPrefix(f.Name, "node") {
				var r Report
				if err := json.Unmarshal(f.Data, &r); err != nil {
					t.Fatalf("%s: %v", f.Name, err)
				}
				reports = append(reports, r)
			}
		}
		var text strings.Builder
		if err := Join(reports...).Print(&text, time.UTC, All); err != nil {
			t.Fatal(err)
		}
		return append(files[:len(reports):len(reports)], txtar.File{Name: "text", Data: []byte(text.String())})
	})
}

func TestAReportOfNothing(t *testing.T) {
	var text strings.Builder
	if err := Join().Print(&text, time.UTC, All); err != nil || text.String() != "No packet was dropped.\n" {
		t.Errorf("%q, %v", text.String(), err)
	}
	if b, err := json.Marshal(Join(Report{})); err != nil || string(b) != `{"counts":[],"recent":[]}` {
		t.Errorf("%s, %v", b, err)
	}
}

// The packets that are shown are the last ones, or those of the last while, and how many
// there are besides is said. What is counted stays.
func TestChoice(t *testing.T) {
	var all []Record
	for minute := range 30 {
		all = append(all, Record{Time: noon.Add(time.Duration(minute) * time.Minute), Node: "node1", Direction: plan.Incoming, Rule: fmt.Sprint("rule ", minute), Protocol: "tcp"})
	}
	now := noon.Add(30 * time.Minute)
	for name, test := range map[string]struct {
		flags                []string
		people               bool
		first, rows, earlier int
	}{
		"people see the last":  {nil, true, 10, 20, 10},
		"programs get all":     {nil, false, 0, 30, 0},
		"the last few":         {[]string{"--tail", "3"}, true, 27, 3, 27},
		"programs as they ask": {[]string{"--tail=3"}, false, 27, 3, 27},
		"all":                  {[]string{"--tail", "-1"}, true, 0, 30, 0},
		"none":                 {[]string{"--tail", "0"}, true, 0, 0, 30},
		"of a while":           {[]string{"--since", "25m"}, true, 5, 25, 5},
		"the last of a while":  {[]string{"--since", "25m", "--tail", "2"}, true, 28, 2, 28},
	} {
		t.Run(name, func(t *testing.T) {
			f := pflag.NewFlagSet("drops", pflag.ContinueOnError)
			choice := ChoiceFlags(f)
			if err := f.Parse(test.flags); err != nil {
				t.Fatal(err)
			}
			c, err := choice(now, test.people)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := (Report{Counts: []Count{{Packets: 30, Rule: "some"}}, Recent: all}).Print(&text, time.UTC, c); err != nil {
				t.Fatal(err)
			}
			got := text.String()
			if n := strings.Count(got, "node1"); n != test.rows || n > 0 && !strings.Contains(got, fmt.Sprintf("rule %d\n", test.first)) || !strings.Contains(got, "30 ") {
				t.Errorf("%d are shown, and not %d from %d on:\n%s", n, test.rows, test.first, got)
			}
			if said := fmt.Sprintf("not shown: %d ", test.earlier); strings.Contains(got, said) != (test.earlier > 0) {
				t.Errorf("it is said, and %d are not shown:\n%s", test.earlier, got)
			}
		})
	}
	choice := ChoiceFlags(pflag.NewFlagSet("drops", pflag.ContinueOnError))
	if c, err := choice(now, false); err != nil || c != All {
		t.Errorf("chosen is %v, %v", c, err)
	}
}
