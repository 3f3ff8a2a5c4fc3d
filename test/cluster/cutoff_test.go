package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/lab"
)

// TestPodsCutOff takes the interfaces of pods away, one with and one without the
// node's record of it. Weft status must name the pods, weft why must not claim
// that they are reached, and must go on answering about others on the node. All
// is well again when they are made anew.
func TestPodsCutOff(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2})
	address := c.run("a", "node1")[0]
	whole := c.run("whole", "node1")[0]
	c.run("there", "node2")
	c.wantStatus(0, "No problems.")
	wantWhy := func(from, to string, code int, words ...string) {
		t.Helper()
		c.eventually(func() error {
			o := c.weft("", "why", from, to)
			for _, w := range words {
				if !strings.Contains(o.stdout, w) {
					return fmt.Errorf("weft why %s %s lacks %q:\n%s%s", from, to, w, o.stdout, o.stderr)
				}
			}
			if o.code != code {
				return fmt.Errorf("weft why %s %s ends with %d, not %d:\n%s%s", from, to, o.code, code, o.stdout, o.stderr)
			}
			return nil
		})
	}

	a := strings.TrimSpace(c.mustExec("node/node1", "sh", "-ec", "ip -o route show "+address.String()+` | sed 's/.* dev \([^ ]*\).*/\1/'`))
	c.mustExec("node/node1", "ip", "link", "del", a)
	c.wantStatus(1, "pod default/a: its interface "+a+" on node1 is gone", "delete the pod, so that it is made anew")
	for _, ends := range [][2]string{{"there", "a"}, {"a", "there"}, {"whole", "a"}, {"node/node1", "a"}} {
		wantWhy(ends[0], ends[1], 2, "unknown: node1 says of pod default/a: its interface "+a+" on node1 is gone")
	}
	wantWhy("there", "whole", 0, "allowed")
	wantWhy("whole", "there", 0, "allowed")
	c.mustReach("pod/there", whole)
	if err := c.lab.Delete(t.Context(), "", "a"); err != nil {
		t.Fatal(err)
	}
	c.wantStatus(0, "No problems.")
	c.run("a", "node1")
	wantWhy("there", "a", 0, "allowed")

	// The record goes as well.
	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	c.mustExec("node/node1", bin+"weft-agent", "uninstall", "--force")
	if err := c.lab.Start(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	c.wantStatus(1, "pod default/a: node1 knows no interface of it", "pod default/whole: node1 knows no interface of it")
	wantWhy("there", "a", 2, "unknown: node1 says of pod default/a: node1 knows no interface of it")
	for _, name := range []string{"a", "whole"} {
		if err := c.lab.Delete(t.Context(), "", name); err != nil {
			t.Fatal(err)
		}
	}
	c.wantStatus(0, "No problems.")
}

// TestWhyBesideDeletedNode deletes a node whose pods the others are still told
// of. They tell that, and it is no reason not to know what becomes of a
// connection between them.
func TestWhyBesideDeletedNode(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 3, Plugin: "openshift-networkpolicy"})
	c.policyPod("web", "node1", "web")
	c.policyPod("front", "node2", "front")
	c.policyPod("left", "node3", "left")
	c.weft("", "why", "front", "web").want(t, 0, "allowed")
	c.weft("", "delete", "node", "node3").want(t, 0)
	c.wantStatus(1, "nodepods node3: address", "node1   172.30.0.11   10.1.")
	c.eventually(func() error {
		if o := c.weft("", "get", "nodes", "-o", "yaml"); strings.Count(o.stdout, `"kind":"NodePods","name":"node3"`) != 2 {
			return fmt.Errorf("not both nodes tell of it:\n%s%s", o.stdout, o.stderr)
		}
		return nil
	})
	// They do what their plans say all the same.
	if o := c.weft("", "get", "nodes"); strings.Contains(o.stdout, "OutOfSync") {
		t.Errorf("a node is out of sync:\n%s", o.stdout)
	}
	c.weft("", "why", "front", "web").want(t, 0, "allowed", "nodepods node3: address")
	if o := c.weft("", "why", "front", "left"); o.code == 0 {
		t.Errorf("a pod of the node that was deleted is said to be reached:\n%s", o.stdout)
	}
}
