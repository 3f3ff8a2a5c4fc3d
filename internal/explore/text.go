package explore

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weftnet/weft/registry"
)

// Text is what is known of a state, put so that states with the same future
// read the same. Words stand for themselves. Names, such as UIDs, count by
// where they are met first: one name may be put for another throughout. Times
// count by how long they are from now, or once they are long past by their
// order alone.
//
// The zero Text is empty.
type Text struct{ parts []part }

type part struct {
	class class
	word  string
	time  time.Time
}

type class uint8

const (
	words class = iota
	name
	moment
)

// Say adds words.
func (t *Text) Say(s ...string) {
	for _, w := range s {
		t.parts = append(t.parts, part{class: words, word: w})
	}
}

// Name adds a name.
func (t *Text) Name(s string) { t.parts = append(t.parts, part{class: name, word: s}) }

// Time adds a time.
func (t *Text) Time(at time.Time) { t.parts = append(t.parts, part{class: moment, time: at}) }

// Add adds another text.
func (t *Text) Add(other Text) { t.parts = append(t.parts, other.parts...) }

// AddSet adds texts whose order does not matter.
func (t *Text) AddSet(others ...Text) {
	type sortable struct {
		text Text
		key  string
	}
	var all []sortable
	for _, o := range others {
		// A name that the others have, too, may tell two of them apart only by
		// its number, which is not known yet. They then stay in their order,
		// and some states that are the same are visited twice.
		var key []byte
		for _, p := range o.parts {
			switch p.class {
			case words:
				key = append(key, p.word...)
			case moment:
				key = p.time.AppendFormat(key, time.RFC3339)
			}
		}
		all = append(all, sortable{o, string(key)})
	}
	slices.SortStableFunc(all, func(a, b sortable) int {
		switch {
		case a.key < b.key:
			return -1
		case a.key > b.key:
			return 1
		}
		return 0
	})
	for _, s := range all {
		t.Say("\n{")
		t.Add(s.text)
		t.Say("}")
	}
}

// Key returns the text as a key, at a time: what lies further back than horizon
// counts by its order.
func (t *Text) Key(now time.Time, horizon time.Duration) []byte {
	var past []time.Time
	old := now.Add(-horizon)
	for _, p := range t.parts {
		if p.class == moment && p.time.Before(old) {
			past = append(past, p.time)
		}
	}
	slices.SortFunc(past, func(a, b time.Time) int { return b.Compare(a) })
	past = slices.CompactFunc(past, time.Time.Equal)
	names := map[string]int{}
	var out []byte
	for _, p := range t.parts {
		switch p.class {
		case words:
			out = append(out, p.word...)
		case name:
			n, ok := names[p.word]
			if !ok {
				n = len(names)
				names[p.word] = n
			}
			out = append(append(out, '#'), strconv.Itoa(n)...)
		case moment:
			if i := slices.IndexFunc(past, p.time.Equal); i >= 0 {
				out = append(append(out, '<'), strconv.Itoa(i)...)
			} else {
				out = append(append(out, '@'), p.time.Sub(now).String()...)
			}
		}
	}
	return out
}

// textOf reads an encoded object: what in it is a name or a time, and what
// nobody reads, which is when a condition last changed.
func textOf(value []byte) Text {
	var t Text
	rest := string(value)
	said := 0 // rest up to here are words
	cut := func(n int) {
		if said > 0 {
			t.Say(rest[:said])
		}
		rest, said = rest[said+n:], 0
	}
	for said < len(rest) {
		switch tail := rest[said:]; {
		case strings.HasPrefix(tail, unread):
			cut(len(unread) + strings.IndexByte(tail[len(unread):], '"'))
		case strings.HasPrefix(tail, uidPrefix):
			n := len(uidPrefix)
			for n < len(tail) && tail[n] >= '0' && tail[n] <= '9' {
				n++
			}
			cut(0)
			t.Name(rest[:n])
			rest = rest[n:]
		case len(tail) >= len(layout) && tail[4] == '-' && tail[10] == 'T' && tail[19] == 'Z':
			when, err := time.Parse(layout, tail[:len(layout)])
			if err != nil {
				said++
				continue
			}
			cut(0)
			t.Time(when)
			rest = rest[len(layout):]
		default:
			said++
		}
	}
	cut(0)
	return t
}

const (
	// uidPrefix is what the UIDs begin with that a Store gives.
	uidPrefix = "uid-"
	// layout is that of a metav1.Time.
	layout = "2006-01-02T15:04:05Z"
	unread = `"lastTransitionTime":"`
)

// Object returns an object as a text.
func Object(k *registry.Kind, o registry.Object) Text {
	value, err := k.Encode(o)
	if err != nil {
		return Text{[]part{{word: err.Error()}}}
	}
	return textOf(value)
}
