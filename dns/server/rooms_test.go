package server

import (
	"fmt"
	"testing"

	"github.com/weftnet/weft/dns/unanswered"
)

// fill has clients take as many places in a room as they get, the first ones as many as one may have, and
// returns how many these are.
func fill(of *share) (got int) {
	for c := range 2 * mostOutside {
		for of.take(pod(c)) {
			got++
		}
	}
	return got
}

// TestRooms has two domains take all the places there are: each other one has some, for several clients.
func TestRooms(t *testing.T) {
	r := newRooms()
	if first, second := fill(r.room("first")), fill(r.room("second")); first+second < maxOutsideTogether || first < maxOutside {
		t.Errorf("there are places for %d of one domain and for %d of another", first, second)
	}
	for i := range 60 {
		domain := fmt.Sprint(i)
		one := r.room(domain)
		if got := fill(one); got != fewOutside {
			t.Errorf("domain %s has places for %d queries, and it should be for %d", domain, got, fewOutside)
		}
		if len(one.clients) != fewOutside/few {
			t.Errorf("%d clients have a place there", len(one.clients))
		}
	}
	for domain, one := range r.of {
		for client, number := range one.clients {
			for range number {
				one.give(client)
			}
		}
		if one.count() != 0 {
			t.Errorf("domain %s has %d still", domain, one.count())
		}
	}
	if r.all.count() != 0 {
		t.Errorf("there wait %d, and nobody asks", r.all.count())
	}
}

// TestMemoryHasRoom has as many queries wait as there may, in the queue and for others, of more domains than
// settings have: the memory that outlives a server has room for all, and for those that workers have.
func TestMemoryHasRoom(t *testing.T) {
	queue, r := newFair[int](maxWaitingEach, maxWaiting), newRooms()
	all := 0
	for c := range 4 * maxWaiting {
		for queue.push(pod(c), c) {
			all++
		}
	}
	for i := range 200 {
		all += fill(r.room(fmt.Sprint(i)))
	}
	const working = 100
	if room := unanswered.Queries; all+working > room {
		t.Errorf("%d queries may wait, and the memory has room for %d", all, room)
	}
	if all < 2*maxWaiting+mostOutside {
		t.Errorf("%d queries wait, and it should be %d", all, 2*maxWaiting+mostOutside)
	}
}

// TestRoomsStay: a room stays for as long as its domain has servers of its own, or somebody waits there.
func TestRoomsStay(t *testing.T) {
	r := newRooms()
	waited, empty, kept := r.room("waited.example"), r.room("empty.example"), r.room("kept.example")
	waited.take(pod(1))
	r.keep(map[string]bool{"kept.example": true})
	if r.room("waited.example") != waited || r.room("kept.example") != kept || r.room("empty.example") == empty {
		t.Errorf("rooms are %v", r.of)
	}
	waited.give(pod(1))
	r.keep(nil)
	if len(r.of) != 0 {
		t.Errorf("there are rooms still: %v", r.of)
	}
}
