package server

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func pod(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}) }

// TestFair has clients put items in and takes some out, and holds the queue to what it is to do:
// each client's items come in order, a client that has something waiting is passed over by no
// other twice, and only what has no room is refused.
func TestFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		each, all := rapid.IntRange(1, 5).Draw(t, "each"), rapid.IntRange(1, 12).Draw(t, "all")
		f := newFair[int](each, all)
		waiting := map[int][]int{}
		// passed is how often others had their turn since a client had something waiting.
		passed := map[int]map[int]int{}
		total := 0
		for item := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "push") {
				c := rapid.IntRange(1, 6).Draw(t, "client")
				room := len(waiting[c]) < each && (total < all || len(waiting[c]) < few && total < 2*all)
				if got := f.push(pod(c), c*1000+item); got != room {
					t.Fatalf("room for client %d: %v, and it should be %v", c, got, room)
				}
				if room {
					if len(waiting[c]) == 0 {
						passed[c] = map[int]int{}
					}
					waiting[c] = append(waiting[c], c*1000+item)
					total++
				}
				continue
			}
			if total == 0 {
				continue
			}
			got, ok := f.pop()
			c := got / 1000
			if !ok || len(waiting[c]) == 0 || waiting[c][0] != got {
				t.Fatalf("%d came, and of client %d there are %v", got, c, waiting[c])
			}
			waiting[c] = waiting[c][1:]
			passed[c] = map[int]int{}
			total--
			for other, items := range waiting {
				if other != c && len(items) > 0 {
					if passed[other][c]++; passed[other][c] > 1 {
						t.Fatalf("client %d waits, and %d had two turns", other, c)
					}
				}
			}
		}
		f.close()
		if f.push(pod(1), 1) {
			t.Fatal("a closed queue takes something")
		}
		for ; total > 0; total-- {
			if _, ok := f.pop(); !ok {
				t.Fatalf("%d are left", total)
			}
		}
		if _, ok := f.pop(); ok || len(f.clients) > 0 || f.turns.waiting() > 0 {
			t.Fatal("something is left")
		}
	})
}

// TestFairTogether has many put in and take out at once.
func TestFairTogether(t *testing.T) {
	const clients, items = 8, 1000
	f := newFair[int](items, clients*items)
	var put, take sync.WaitGroup
	for c := range clients {
		put.Go(func() {
			for i := range items {
				f.push(pod(c), i)
			}
		})
	}
	var mu sync.Mutex
	var got []int
	for range 4 {
		take.Go(func() {
			for {
				i, ok := f.pop()
				if !ok {
					return
				}
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
			}
		})
	}
	put.Wait()
	f.close()
	take.Wait()
	slices.Sort(got)
	if len(got) != clients*items || got[0] != 0 || got[len(got)-1] != items-1 {
		t.Errorf("%d items came", len(got))
	}
}

// TestFairAnyway has a queue that is full take what has to be in it.
func TestFairAnyway(t *testing.T) {
	f := newFair[int](1, 1)
	f.push(pod(1), 1)
	f.push(pod(2), 2)
	if f.push(netip.Addr{}, 3) || !f.pushAnyway(netip.Addr{}, 3) || !f.pushAnyway(netip.Addr{}, 4) {
		t.Error("it is not full, or does not take what it must")
	}
	if f.pushNew(pod(1), func() int { t.Error("an item is made that has no room"); return 0 }) {
		t.Error("it is not full for an item that is new")
	}
	f.close()
	if f.pushAnyway(netip.Addr{}, 5) {
		t.Error("a closed queue takes something")
	}
	for want := 1; want <= 4; want++ {
		if got, ok := f.pop(); got != want || !ok {
			t.Errorf("%d comes, %v", got, ok)
		}
	}
}

// TestShare takes more than there is.
func TestShare(t *testing.T) {
	s := newShare(4, 4)
	take := func(c, times int, want bool) {
		t.Helper()
		for range times {
			if got := s.take(pod(c)); got != want {
				t.Errorf("client %d gets one: %v", c, got)
			}
		}
	}
	take(1, 4, true)
	take(1, 1, false)
	// The first has taken all there is. Others get what they need all the same, to a limit.
	take(2, few, true)
	take(2, 1, false)
	take(3, few, true)
	take(4, 1, false)
	s.give(pod(1))
	take(1, 1, false)
	take(4, 1, true)
	for _, c := range []int{1, 1, 1, 2, 2, 3, 3, 4} {
		s.give(pod(c))
	}
	if s.count() != 0 || len(s.clients) != 0 {
		t.Errorf("%d are left: %v", s.count(), s.clients)
	}
}

// TestLanesAreUsedAgain: a client that asks one thing at a time takes no memory, and what one takes
// that always has something waiting does not grow.
func TestLanesAreUsedAgain(t *testing.T) {
	f := newFair[int](4, 100)
	if n := testing.AllocsPerRun(1000, func() {
		f.push(pod(1), 1)
		f.pop()
	}); n >= 1 {
		t.Errorf("an item takes %.1f allocations", n)
	}
	f.push(pod(1), 0)
	for i := range 10000 {
		f.push(pod(1), i+1)
		if got, ok := f.pop(); !ok || got != i {
			t.Fatalf("%d came in the place of %d", got, i)
		}
	}
	if room := cap(f.clients[pod(1)].items); room > 8 {
		t.Errorf("there is room for %d items, and one or two wait", room)
	}
}
