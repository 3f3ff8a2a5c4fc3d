package policy

import (
	"testing"

	"github.com/weftnet/weft/test/policy/oracle"
	"github.com/weftnet/weft/test/policy/story"
)

// What is written down is what was meant: stories of random clusters are read
// as clusters in which the oracle says the same of the same packets, and in
// which what did not change is the same object.
func TestStoriesAreReadAsWritten(t *testing.T) {
	for i := range uint64(50) {
		g := newGenerator(*seed, i)
		first := g.cluster()
		clusters := []*oracle.Cluster{first, g.mutate(first), {}}
		written := &story.Story{Comment: "One after the other.\n"}
		for _, c := range clusters {
			state := story.State{Cluster: c}
			for _, p := range g.packets(c, 20) {
				a := c.Evaluate(p)
				state.Packets = append(state.Packets, story.Expectation{Packet: p, Allowed: a.Allowed, By: a.Ingress})
			}
			written.States = append(written.States, state)
		}
		text, err := story.Format(written)
		if err != nil {
			t.Fatal(err)
		}
		read, err := story.Parse(text)
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if read.Comment != written.Comment || len(read.States) != len(written.States) {
			t.Fatalf("of %d states with the comment %q there are %d with %q", len(written.States), written.Comment, len(read.States), read.Comment)
		}
		for j, state := range read.States {
			was := written.States[j]
			if len(state.Packets) != len(was.Packets) {
				t.Fatalf("state %d has %d packets instead of %d", j+1, len(state.Packets), len(was.Packets))
			}
			for k, e := range state.Packets {
				if want := was.Packets[k]; e.Packet != want.Packet || e.Allowed != want.Allowed || e.By != want.By {
					t.Fatalf("%s: read as %+v", e.Line, e)
				}
				if got, want := state.Cluster.Evaluate(e.Packet), was.Cluster.Evaluate(e.Packet); got != want {
					t.Fatalf("%s: the oracle: %s; as written: %s\n%s", e.Line, describe(got), describe(want), text)
				}
			}
		}
		if got, want := shared(read.States[0].Cluster, read.States[1].Cluster), shared(clusters[0], clusters[1]); got < want {
			t.Fatalf("%d objects instead of %d are the same in both states:\n%s", got, want, text)
		}
	}
}

// shared counts the objects of a cluster that are also in another.
func shared(a, b *oracle.Cluster) (count int) {
	there := map[any]bool{}
	for _, o := range objectsOf(a) {
		there[o] = true
	}
	for _, o := range objectsOf(b) {
		if there[o] {
			count++
		}
	}
	return count
}

func TestBadStories(t *testing.T) {
	for text, want := range map[string]string{
		"-- notes --\n":   `file "notes" is neither a .yaml nor packets behind one`,
		"-- packets --\n": `file "packets" is neither a .yaml nor packets behind one`,
		"-- a.yaml --\n-- packets --\n1.2.3.4 to 1.2.3.5 TCP 80\n":                  `packets: "1.2.3.4 to 1.2.3.5 TCP 80": it is not of the form: SOURCE to DESTINATION PROTOCOL [PORT] => allowed|denied [by RULE]`,
		"-- a.yaml --\n-- packets --\n1.2.3.4 to 1.2.3.5 TCP 80 => perhaps\n":       `packets: "1.2.3.4 to 1.2.3.5 TCP 80 => perhaps": the answer is neither allowed nor denied`,
		"-- a.yaml --\n-- packets --\ndefault/web to 1.2.3.5 TCP 80 => allowed\n":   `packets: "default/web to 1.2.3.5 TCP 80 => allowed": default/web is neither an address nor a pod with so many`,
		"-- a.yaml --\n-- packets --\n1.2.3.4 to 1.2.3.5 TCP 65536 => allowed\n":    `packets: "1.2.3.4 to 1.2.3.5 TCP 65536 => allowed": strconv.ParseUint: parsing "65536": value out of range`,
		"-- a.yaml --\napiVersion: v1\nkind: Service\nmetadata: {name: elephant}\n": "",
	} {
		_, err := story.Parse([]byte(text))
		if err == nil || want != "" && err.Error() != want {
			t.Errorf("%q: %v; expected %q", text, err, want)
		}
	}
}
