package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/lab"
)

// TestRegistryAway takes etcd and the controller away: running pods go on,
// pods that end are cleaned up, new ones start, and agents stay ready.
func TestRegistryAway(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2})
	here, there := c.run("here", "node1")[0], c.run("there", "node2")[0]
	old := c.sandbox("node1", "old")
	if a := old.cni("ADD"); a.Code != 0 {
		t.Fatal(a)
	}
	if err := c.lab.Kill("controller1"); err != nil {
		t.Fatal(err)
	}

	if a := old.cni("DEL"); a.Code != 0 {
		t.Error(a)
	}
	fresh := c.sandbox("node1", "fresh")
	added := fresh.cni("ADD")
	if added.Code != 0 || len(added.IPs) != 1 {
		t.Fatal(added)
	}
	address := netip.MustParsePrefix(added.IPs[0].Address).Addr()
	for _, to := range []netip.Addr{here, there} {
		out, err := fresh.exec(self, "fetch", "http://"+netip.AddrPortFrom(to, lab.ServerPort).String()+"/")
		if err != nil {
			t.Fatal(err)
		}
		if _, seen, err := parseAnswer(out); err != nil || seen != address {
			t.Errorf("%s is seen as %s: %v", address, seen, err)
		}
	}
	c.mustSee("pod/here", there, here)
	for _, node := range c.lab.Nodes() {
		if ok, said := c.ready(node); !ok {
			t.Errorf("%s is not ready: %s", node, said)
		}
	}
	c.weft("", "get", "nodes").want(t, 2, "registry unavailable", "start it with: weft lab start-node controller1")

	// An agent that starts has no subnet to give addresses of until it has
	// read the registry, and says so. It cleans up, and touches nothing.
	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() { started <- c.lab.Start(ctx, "node1") }()
	c.eventually(func() error {
		if ok, said := c.ready("node1"); ok || !strings.Contains(said, "registry") {
			return fmt.Errorf("ready: %t: %s", ok, said)
		}
		return nil
	})
	if a := fresh.cni("DEL"); a.Code != 0 {
		t.Error(a)
	}
	c.mustSee("pod/here", there, here)
	c.mustSee("pod/there", here, there)
	if a := c.sandbox("node1", "late").cni("ADD"); a.Code != 11 || !strings.Contains(a.Details, "registry") {
		t.Errorf("ADD without a registry: %+v", a)
	}
	cancel()
	<-started

	for _, name := range []string{"controller1", "node1"} {
		if err := c.lab.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	c.mustSee("pod/here", there, here)
	c.mustSee("pod/there", here, there)
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s%s", s.code, s.stdout, s.stderr)
		}
		return nil
	})
	if links := c.mustExec("node/node1", "sh", "-c", "ip -o link | grep -c 'weft[0-9a-f]\\{11\\}'"); strings.TrimSpace(links) != "1" {
		t.Errorf("node1 has %s pods' interfaces, and not 1", links)
	}
}
