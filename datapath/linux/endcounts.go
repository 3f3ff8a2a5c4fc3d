package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
)

// Counts end behind the transaction by which goes what they are of, in one of their own and in the
// background: nobody who changes policies or Services waits for it, or fails with it. Until they are
// deleted nobody is told of them. Most of what goes has counted nothing, so the sets are read, and what
// is there is deleted. An agent that is killed before leaves that to the next, which finds what nobody has; of
// a frontend that changed hands in that moment the counts go on.

const (
	// gatherCounts is for how long counts that end are gathered. Then each set is read that may have some.
	gatherCounts = 100 * time.Millisecond
	// restOfCounts is how many times as long as the last reading passes before the next, up to
	// mostRestOfCounts: sets may be large, and what goes may go one by one.
	restOfCounts     = 20
	mostRestOfCounts = 30 * time.Second
	// retryCounts is how long after an error it is tried again.
	retryCounts = time.Second
	// countsAtOnce is how many are deleted in a transaction at most, for which others wait.
	countsAtOnce = 1000
)

// goneCounts say whose counts end: by set, what ofCount says of an element.
type goneCounts map[string]map[string]bool

// ofCount is what an element of a set of counts is of: of a frontend's the side from which packets came,
// and the frontend, whatever the outcome, and of a backend's all.
func ofCount(set, key string) string {
	if strings.HasPrefix(set, takesPrefix) || len(key) < 4 {
		return key
	}
	o := outcome(binary.NativeEndian.Uint32([]byte(key)))
	return word(uint32(o&outcomeOutside)) + key[4:]
}

func (g goneCounts) put(set, of string) {
	if g[set] == nil {
		g[set] = map[string]bool{}
	}
	g[set][of] = true
}

// frontend has the counts of a frontend end.
func (g goneCounts) frontend(k plan.ServiceKey) {
	for _, side := range sidesOf(k) {
		g.put(countsPrefix+suffix(k.Address.Is4()), countKey(outcome(0).from(side), k))
	}
}

// backend has that of a backend end.
func (g goneCounts) backend(k plan.BackendKey) {
	g.put(takesPrefix+suffix(k.Address.Is4()), takesKey(digestOfName(k.Set), netip.AddrPortFrom(k.Address, k.Port)))
}

// disowned has counts end where a table takes the place of what there is: those of frontends that are gone,
// or are another's.
func (g goneCounts) disowned(have nft.Content, want *nft.Table) {
	for _, is4 := range interval.Families {
		for _, side := range bothSides {
			for prefix, port := range map[string]string{frontendsPrefix: "", restPrefix: blank + blank} {
				set := sideOf(prefix, side, is4)
				for e, v := range have.Elements[set] {
					if ownerIn(v) != ownerIn(want.Sets[set].Elements[e]) {
						g.put(countsPrefix+suffix(is4), word(uint32(outcome(0).from(side)))+e.Key+port)
					}
				}
			}
		}
	}
}

// add has those end that others say, which must not change any more.
func (g goneCounts) add(others goneCounts) {
	for set, keys := range others {
		if g[set] == nil {
			g[set] = keys
		} else {
			maps.Copy(g[set], keys)
		}
	}
}

// has reports whether an element ends.
func (g goneCounts) has(set string, e nft.Element) bool {
	return len(g[set]) > 0 && g[set][ofCount(set, e.Key)]
}

// counter reads what Services have counted, and ends counts in the background.
type counter struct {
	in    func(func() error) error
	log   *slog.Logger
	table string
	// lock is held by who writes nftables, and enforced is the plan by which packets are counted.
	lock     sync.Locker
	enforced *atomic.Pointer[plan.Plan]

	// reading is held by who reads counts, until those that end are deleted that were read.
	reading sync.Mutex
	mu      sync.Mutex
	// due are those that end, and strays says that there may be some of what no plan has.
	due    goneCounts
	strays bool

	wake    chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	stopped chan struct{}
}

func startCounter(in func(func() error) error, log *slog.Logger, table string, lock sync.Locker, enforced *atomic.Pointer[plan.Plan]) *counter {
	t := &counter{in: in, log: log, table: table, lock: lock, enforced: enforced, due: goneCounts{}, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	go t.run()
	return t
}

func (t *counter) close() {
	t.cancel()
	<-t.stopped
}

// end has counts end, of which nobody is told from here on, and, where there may be strays, those of
// what is not in the plan that is enforced when settle is called.
func (t *counter) end(gone goneCounts, strays bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due.add(gone)
	t.strays = t.strays || strays
}

// settle has those deleted that are to end.
func (t *counter) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.due) == 0 && !t.strays {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *counter) run() {
	defer close(t.stopped)
	var took time.Duration
	for {
		select {
		case <-t.wake:
		case <-t.ctx.Done():
			return
		}
		for wait := max(gatherCounts, min(restOfCounts*took, mostRestOfCounts)); wait > 0; {
			if !retry.Sleep(t.ctx, wait) {
				return
			}
			wait = 0
			began := time.Now()
			if err := t.in(t.round); err != nil {
				// What ends by itself in this moment is not there to be deleted.
				if !errors.Is(err, unix.ENOENT) {
					t.log.Warn("counts of Services that are gone stay for now, and are told of nobody", "error", err)
				}
				wait = retryCounts
			}
			took = time.Since(began)
		}
	}
}

// round deletes what is to end.
func (t *counter) round() error {
	t.reading.Lock()
	defer t.reading.Unlock()
	t.mu.Lock()
	gone, strays := t.due, t.strays
	t.due, t.strays = goneCounts{}, false
	t.mu.Unlock()
	err := t.delete(gone, strays)
	if err != nil {
		t.end(gone, strays)
	}
	return err
}

// delete deletes counts, and, where there may be strays, those of what the plan does not have.
func (t *counter) delete(gone goneCounts, strays bool) error {
	var by counted
	if strays {
		by = countedBy(t.enforced.Load())
	}
	for _, set := range setsOfCounts() {
		if !strays && len(gone[set.name]) == 0 {
			continue
		}
		there, _, err := set.read(t.table)
		if err != nil {
			return err
		}
		var ends []reconcile.Change[nft.Element, nft.Value]
		for e := range there {
			if gone.has(set.name, e) || strays && !by.knows(set, e) {
				ends = append(ends, reconcile.Change[nft.Element, nft.Value]{Key: e, Old: &nft.Value{}})
			}
		}
		table := nft.NewTable(t.table)
		table.Set(set.name, set.like)
		for some := range slices.Chunk(ends, countsAtOnce) {
			if err := t.write(nft.Edit{Table: table, Changes: map[string]nft.Change{set.name: {Elements: some}}}); err != nil {
				return fmt.Errorf("delete counts of what is gone: %w", err)
			}
		}
	}
	return nil
}

func (t *counter) write(e nft.Edit) error {
	t.lock.Lock()
	defer t.lock.Unlock()
	_, err := nft.Apply(e)
	return err
}

// each calls f for each count that does not end, with the packets that it has counted.
func (t *counter) each(f func(set countSet, e nft.Element, packets uint64)) error {
	t.reading.Lock()
	defer t.reading.Unlock()
	for _, set := range setsOfCounts() {
		var there nft.Elements
		var packets map[nft.Element]uint64
		err := t.in(func() (err error) { there, packets, err = set.read(t.table); return err })
		if err != nil {
			return err
		}
		t.mu.Lock()
		for e := range there {
			if !t.due.has(set.name, e) {
				f(set, e, packets[e])
			}
		}
		t.mu.Unlock()
	}
	return nil
}
