package drops

import "sync"

// kept is how many Records a Log keeps, and waiting how many a follower may
// have yet to read.
const (
	kept    = 1024
	waiting = 256
)

// Log keeps the last Records and hands new ones to those who follow it. It may
// be used from any goroutine. The zero Log is empty.
type Log struct {
	mu        sync.Mutex
	records   []Record // a ring once it is full, whose oldest is at next
	next      int
	followers map[chan Record]struct{}
}

// Add adds a Record. It waits for nobody: a follower that does not keep up
// loses Records.
func (l *Log) Add(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.records) < kept {
		l.records = append(l.records, r)
	} else {
		l.records[l.next] = r
		l.next = (l.next + 1) % kept
	}
	for f := range l.followers {
		select {
		case f <- r:
		default:
		}
	}
}

// Recent returns the last Records, the oldest first.
func (l *Log) Recent() []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	recent := make([]Record, 0, len(l.records))
	return append(append(recent, l.records[l.next:]...), l.records[:l.next]...)
}

// Follow returns a channel that delivers Records from now on, until cancel is
// called. It is never closed.
func (l *Log) Follow() (records <-chan Record, cancel func()) {
	f := make(chan Record, waiting)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.followers == nil {
		l.followers = make(map[chan Record]struct{})
	}
	l.followers[f] = struct{}{}
	return f, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.followers, f)
	}
}
