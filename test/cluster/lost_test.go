package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// A node that loses its journal with its agent keeps its pods under their
// policies. Where it cannot tell which pod an interface is of, any policy may be
// about it, and the node says so until it knows.
func TestLostJournal(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "openshift-networkpolicy"})
	shut := c.policyPod("shut", "node1", "shut")
	open := c.policyPod("open", "node1", "open")
	c.policyPod("client", "node2", "client")
	c.apply(fmt.Sprintf(isolateAll, "shut"))
	c.mustNotReach("pod/client", shut)
	c.mustReach("pod/client", open)

	const isolates = "NetworkPolicy default/isolate-shut ingress isolation"
	lose := func(alias string) {
		t.Helper()
		script := `rm /run/weft/journal; `
		if alias != "" {
			script += fmt.Sprintf(`dev=$(ip -o route show %s | sed 's/.* dev \([^ ]*\).*/\1/'); `+
				`new=$(cat /sys/class/net/$dev/ifalias | sed 's|%s|%s|'); ip link set $dev alias "$new"`, open, ` weft.*`, alias)
		}
		if err := c.lab.Kill("node1"); err != nil {
			t.Fatal(err)
		}
		c.mustExec("node/node1", "sh", "-ec", script)
		if err := c.lab.Start(t.Context(), "node1"); err != nil {
			t.Fatal(err)
		}
	}
	lose("")
	c.planHas("node1", isolates)
	if _, _, err := c.reach("pod/client", shut); err == nil {
		t.Fatal("a pod's policy is gone with the journal")
	}
	c.mustReach("pod/client", open)

	// The alias says nothing, as one of an older version, and the registry is
	// of no help.
	r := c.registry()
	address := func(ips ...corev1.PodIP) {
		t.Helper()
		key := registry.Key{Namespace: "default", Name: "open"}
		if _, err := registry.Modify(t.Context(), r, api.Pod, key, func(p *corev1.Pod) error { p.Status.PodIPs = ips; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	address()
	lose(" weft")
	c.planHas("node1", "the node has lost which pod this is")
	if _, _, err := c.reach("pod/client", open); err == nil {
		t.Fatal("a pod that nobody knows is open although a policy could be about it")
	}
	c.eventually(func() error {
		if said := c.weft("", "status"); said.code == 0 || !strings.Contains(said.stdout, "has lost which they are") {
			return fmt.Errorf("weft status ends with %d:\n%s", said.code, said.stdout)
		}
		return nil
	})
	address(corev1.PodIP{IP: open.String()})
	c.mustReach("pod/client", open)
	c.eventually(func() error {
		if said := c.weft("", "status"); said.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s", said.code, said.stdout)
		}
		return nil
	})
}
