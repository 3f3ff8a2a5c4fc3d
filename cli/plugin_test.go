package cli

import (
	"strings"
	"testing"
)

// TestProgress shows a change on a terminal, as a line that is written over, and
// elsewhere, as lines of what is new.
func TestProgress(t *testing.T) {
	sights := []sight{
		{state: "Preparing", nodes: []pluginNodeStatus{{Name: "node1", State: "loads flannel"}, {Name: "node2", State: "nothing reported"}}},
		{state: "Switching", changed: 1, nodes: []pluginNodeStatus{{Name: "node1", State: "done", Changed: true}, {Name: "node2", State: "changes to \x1b[2J"}}},
		{state: "Settled", changed: 2, nodes: []pluginNodeStatus{{Name: "node1", State: "done", Changed: true}, {Name: "node2", State: "done", Changed: true}}},
	}
	show := func(width int) string {
		var b strings.Builder
		p := newProgress(&b, width)
		for _, s := range sights {
			p.show(s)
		}
		p.end()
		p.end()
		return b.String()
	}
	for width, want := range map[int]string{
		0: "node1: loads flannel\nnode2: nothing reported\nnode1: done\nnode2: changes to \\u001b[2J\nnode2: done\n",
		200: "\r\x1b[K[....................] 0/2 preparing  node1 loads flannel, node2 nothing reported" +
			"\r\x1b[K[##########..........] 1/2 switching  node2 changes to \\u001b[2J" +
			"\r\x1b[K[####################] 2/2 settled  \n",
		40: "\r\x1b[K[....................] 0/2 preparing  n" +
			"\r\x1b[K[##########..........] 1/2 switching  n" +
			"\r\x1b[K[####################] 2/2 settled  \n",
	} {
		if got := show(width); got != want {
			t.Errorf("%d characters wide it is\n%q, and not\n%q", width, got, want)
		}
	}
}
