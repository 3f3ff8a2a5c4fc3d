package linux

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// apiFront is the frontend of api in servedEntries, webFront the first of web, and restFront all that
// another address has besides.
var (
	apiFront  = plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr("10.3.0.2"), Protocol: plan.TCP, Port: 443}
	restFront = plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr("10.3.0.3")}
	webFront  = plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr("10.3.0.1"), Protocol: plan.TCP, Port: 80}
)

// count has frontends count something, as a packet that is refused would.
func (b *bench) count(frontends ...plan.ServiceKey) {
	b.t.Helper()
	set := setsOfCounts()[0]
	all := nft.Elements{}
	for _, k := range frontends {
		all[nft.Element{Key: countKey(outcomeRefused, k)}] = nft.Value{}
	}
	b.do(func() error {
		return nft.Transaction(b.stamps.ServiceTable, func(conn *nftables.Conn) error {
			return nft.AddElements(conn, set.like.In(b.stamps.ServiceTable, set.name), all, time.Hour)
		})
	})
}

// told checks whether counts of a frontend are told.
func (b *bench) told(what string, k plan.ServiceKey, want bool) {
	b.t.Helper()
	counts, err := b.Counts()
	if err != nil {
		b.t.Fatal(err)
	}
	if _, is := counts.Frontends[k]; is != want {
		b.t.Errorf("%s: counts of %s are told is %t; expected %t", what, k.Address, is, want)
	}
}

// counted waits until as many counts of frontends are there.
func (b *bench) counted(what string, want int) {
	b.t.Helper()
	set := setsOfCounts()[0]
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var there nft.Elements
		b.do(func() (err error) { there, _, err = set.read(b.stamps.ServiceTable); return err })
		if len(there) == want {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("%s: there are %d counts; expected %d", what, len(there), want)
		}
	}
}

// TestCountsEnd has frontends go whose counts' set is full, which no change notices, and another
// Service have one of the addresses: nobody is told of its counts of before, though they are deleted
// later.
func TestCountsEnd(t *testing.T) {
	defer SetMostCounts(2)()
	b := newBench(t)
	text := policedPlan + servedEntries
	b.mustApply(mustParse(t, text))
	b.count(apiFront, webFront)
	b.told("it has counted", apiFront, true)

	b.mustApply(mustParse(t, strings.Replace(text, "to api sources api", "to api sources api # Service default/other", 1)))
	b.told("another has its address", apiFront, false)
	b.counted("another has its address", 1)
	b.told("another has its address", webFront, true)
	b.count(apiFront)
	b.told("the other counts", apiFront, true)

	b.mustApply(mustParse(t, strings.Replace(text, "service default 10.3.0.2 tcp 443 to api sources api\n", "", 1)))
	b.mustApply(mustParse(t, text))
	b.told("it went, and is back", apiFront, false)
	b.counted("it went, and is back", 1)
	b.nothingToRepair()
}

// What goes, or comes to be another's, while nobody sees to it has no counts once an agent has started.
func TestCountsEndBehindRestarts(t *testing.T) {
	b := newBench(t)
	text := policedPlan + servedEntries
	b.mustApply(mustParse(t, text))
	b.count(apiFront, webFront, restFront)
	restart := func(text string) {
		t.Helper()
		b.Close()
		var err error
		if b.DataPlane, err = NewAt(b.path, Config{}); err != nil {
			t.Fatal(err)
		}
		b.mustApply(mustParse(t, text))
	}
	restart(text)
	b.told("nothing changed", apiFront, true)
	text = strings.Replace(text, "service default 10.3.0.3 any", "service default 10.3.0.3 any # Service default/other", 1)
	text = strings.Replace(text, "to api sources api", "to api sources api # Service default/other", 1)
	restart(text)
	for what, k := range map[string]plan.ServiceKey{"another has its address": apiFront, "another has all of its address": restFront} {
		b.told(what, k, false)
	}
	b.counted("another has its address", 1)
	b.count(apiFront)
	restart(text)
	b.told("it is still that one's", apiFront, true)
	restart(strings.Replace(text, "service default 10.3.0.2 tcp 443 to api sources api # Service default/other\n", "", 1))
	b.counted("one is gone", 1)
	b.told("another is gone", webFront, true)
}
