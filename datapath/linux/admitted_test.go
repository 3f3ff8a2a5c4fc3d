package linux

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// A list of those who may send somewhere does not change while a frontend speaks of it: a packet that is looked up in
// it meanwhile might not be found, though its sender is in both. What comes of all steps is what a fresh table has.
func TestListsChangeUnspokenOf(t *testing.T) {
	const one, other = "source default api 198.51.100.0/24\n", "source default other 203.0.113.0/24\n"
	text := strings.Replace(policedPlan+servedEntries, "source default api 198.51.100.128/25\n", other, 1)
	from := func(p *plan.Plan) *sources {
		return compileSources(p, func(netip.Addr) (none rtnl.LinkSet) { return none })
	}
	p := mustParse(t, text)
	s, table := compileServices(stamps.Default, p, from(p), nft.Content{})
	for _, c := range []struct{ what, replace, by string }{
		{"a range comes", one, one + "source default api 192.0.2.0/24\n"},
		{"one becomes a part of another", one, "source default api 198.51.0.0/16\n"},
		{"one becomes parts", one, "source default api 198.51.100.0/28\nsource default api 198.51.100.32/28\n"},
		{"nobody is left", one, ""},
		{"one of the other family comes", one, one + "source default api 2001:db8::/64\n"},
		{"the frontend is for others", "sources api", "sources other"},
		{"and these change", "sources api\n", "sources other\nsource default other 192.0.2.0/24\n"},
		{"the frontend is for all", " sources api", ""},
		{"another is for them, too", "sources api\n", "sources api\nservice default 10.3.0.8 tcp 443 to api sources api\n"},
		{"and they change", "sources api\n", "sources api\nservice default 10.3.0.8 tcp 443 to api sources api\nsource default api 192.0.2.0/24\n"},
		{"the node itself answers", "service default 10.3.0.2 tcp 443 to api sources api\n", "service default 10.3.0.2 tcp 443 from inside here sources api\nsource default api 192.0.2.0/24\n"},
	} {
		there := strings.Replace(text, c.replace, c.by, 1)
		if there == text {
			t.Fatalf("%s: nothing to replace", c.what)
		}
		for _, next := range []string{there, text} {
			q := mustParse(t, next)
			steps, known := s.update(p, q, p.Diff(q), from(q))
			if !known {
				t.Fatalf("%s: the table is to be read", c.what)
			}
			for _, edit := range append([]nft.Edit{steps.before, steps.noticed}, steps.behind...) {
				if edit.Empty() {
					continue
				}
				before := spokenOf(table.Table)
				applyTo(t, table.Table, edit)
				after := spokenOf(table.Table)
				for name, change := range edit.Changes {
					for _, e := range change.Elements {
						if strings.HasPrefix(name, admittedPrefix) && !e.Key.End && (before[e.Key.Key[:typeSet.Bytes]] || after[e.Key.Key[:typeSet.Bytes]]) {
							t.Errorf("%s: an element of %s changes of whose list a frontend speaks", c.what, name)
						}
					}
				}
			}
			for set, elements := range shutBy(answeredBy(q)) { // as shut and letIn do
				table.Sets[set].Elements = elements
			}
			_, whole := compileServices(stamps.Default, q, from(q), nft.Content{Elements: allElements(table.Table)})
			sameTable(t, table.Table, whole.Table)
			p = q
		}
	}
}

// spokenOf are the lists of which elements of frontends speak.
func spokenOf(table *nft.Table) map[string]bool {
	spoken := map[string]bool{}
	for name, set := range table.Sets {
		if strings.HasPrefix(name, guardsPrefix) {
			for _, v := range set.Elements {
				spoken[v.Data[len(blank):]] = true
			}
		}
	}
	return spoken
}
