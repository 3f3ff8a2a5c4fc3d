package drops

import (
	"fmt"
	"testing"
)

func TestALogKeepsTheLast(t *testing.T) {
	var l Log
	if got := l.Recent(); got == nil || len(got) != 0 {
		t.Errorf("an empty log has %v", got)
	}
	for i := range kept + 10 {
		l.Add(Record{Rule: fmt.Sprint(i)})
		if got := l.Recent(); len(got) != min(i+1, kept) || got[len(got)-1].Rule != fmt.Sprint(i) || got[0].Rule != fmt.Sprint(max(0, i+1-kept)) {
			t.Fatalf("after %d records there are %d, from %s to %s", i+1, len(got), got[0].Rule, got[len(got)-1].Rule)
		}
	}
}

// A follower that does not read loses records, and keeps nobody else from
// getting them.
func TestNobodyWaitsForAFollower(t *testing.T) {
	var l Log
	slow, cancelSlow := l.Follow()
	quick, cancelQuick := l.Follow()
	for i := range 3 * waiting {
		l.Add(Record{Rule: fmt.Sprint(i)})
		if r := <-quick; r.Rule != fmt.Sprint(i) {
			t.Fatalf("%s instead of %d", r.Rule, i)
		}
	}
	if len(slow) != waiting {
		t.Errorf("%d records wait for one that does not read", len(slow))
	}
	cancelSlow()
	cancelQuick()
	l.Add(Record{})
	if len(quick) != 0 || len(l.followers) != 0 {
		t.Error("who no longer follows gets records")
	}
}
