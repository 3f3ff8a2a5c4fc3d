package attack

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
)

// outcome is what an attack on a cluster came to.
type outcome struct {
	succeeded bool
	// left says why it does not apply.
	left string
	// broken: the test failed before there was an outcome.
	broken bool
}

func (o outcome) String() string {
	switch {
	case o.broken:
		return "BROKEN"
	case o.succeeded:
		return "SUCCEEDED"
	case o.left != "":
		return "does not apply: " + o.left
	}
	return "held"
}

var results = struct {
	sync.Mutex
	of map[string]map[string]outcome // attack, cluster
}{of: map[string]map[string]outcome{}}

// attempts counts the requests to an API server, by who sent them.
var attempts = map[string]*struct{ tried, granted int }{}

// countAttempt notes what became of a request.
func countAttempt(who string, granted bool) {
	results.Lock()
	defer results.Unlock()
	if attempts[who] == nil {
		attempts[who] = new(struct{ tried, granted int })
	}
	attempts[who].tried++
	if granted {
		attempts[who].granted++
	}
}

// record notes an outcome. Of two families, the worse counts.
func record(a attack, cluster string, o outcome) {
	results.Lock()
	defer results.Unlock()
	if results.of[a.name] == nil {
		results.of[a.name] = map[string]outcome{}
	}
	before := results.of[a.name][cluster]
	o.succeeded, o.broken = o.succeeded || before.succeeded, o.broken || before.broken
	results.of[a.name][cluster] = o
}

// report prints what became of the attacks that were tried, a line each.
func report(w io.Writer) {
	results.Lock()
	defer results.Unlock()
	for _, who := range slices.Sorted(maps.Keys(attempts)) {
		fmt.Fprintf(w, "requests to an API server by %s: %d tried, %d granted\n", who, attempts[who].tried, attempts[who].granted)
	}
	if len(results.of) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "attack\tby")
	for _, c := range clusters {
		fmt.Fprint(t, "\t", c.name)
	}
	fmt.Fprintln(t)
	var succeeded, tried int
	var broken []string
	for _, a := range attacks {
		of, ok := results.of[a.name]
		if !ok {
			continue
		}
		fmt.Fprintf(t, "%s\t%s", strings.ReplaceAll(a.name, "_", " "), a.by)
		for _, c := range clusters {
			o, ok := of[c.name]
			switch {
			case !ok:
				fmt.Fprint(t, "\t")
				continue
			case o.broken:
				broken = append(broken, a.name+" on "+c.name)
			case o.succeeded:
				succeeded++
				fallthrough
			case o.left == "":
				tried++
			}
			fmt.Fprint(t, "\t", o)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintf(w, "%d attacks tried on %d clusters: %d trials, %d succeeded\n", len(results.of), len(clusters), tried, succeeded)
	// Last, as of a long output people see the end.
	for _, b := range broken {
		fmt.Fprintf(w, "BROKEN, came to nothing: %s\n", b)
	}
}
