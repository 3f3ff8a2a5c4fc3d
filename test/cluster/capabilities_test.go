package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/lab"
)

// runtime is what a container runtime does: it adds the network namespace at
// args[2] as container args[1], or deletes it, through weft-cni in args[3],
// with the port 8080 of the pod at 18080 of the node and 8 Mbit/s from the pod.
func runtime(args []string) error {
	conflist, err := cni.Conflist("")
	if err != nil {
		return err
	}
	list, err := libcni.ConfListFromBytes(conflist)
	if err != nil {
		return err
	}
	libcni := libcni.NewCNIConfigWithCacheDir([]string{args[3]}, "/run/cni-cache", nil)
	container := runtimeConf(args[1], args[2])
	switch args[0] {
	case "add":
		_, err = libcni.AddNetworkList(context.Background(), list, container)
		return err
	case "del":
		return libcni.DelNetworkList(context.Background(), list, container)
	}
	return errors.New("add or del")
}

func runtimeConf(id, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", id}},
		CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": 18080, "containerPort": lab.ServerPort, "protocol": "tcp"}},
			"bandwidth":    map[string]any{"egressRate": 8_000_000, "egressBurst": 8_000_000, "ingressRate": 0, "ingressBurst": 0},
		}}
}

// TestCapabilities has a pod with a port of its node and a limit of what it sends.
func TestCapabilities(t *testing.T) {
	c := up(t, lab.Options{Nodes: 2})
	client, far := c.run("client", "node1")[0], c.run("far", "node2")[0]
	before := c.mustExec("node/node1", "sh", "-c", "ip -o link | grep -c .; tc qdisc | grep -c tbf || true; nft list ruleset | grep -c 18080 || true; ls /run/netns | wc -l")

	s := c.sandbox("node1", "web")
	do := func(verb string) {
		t.Helper()
		c.mustExec(s.node, self, "runtime", verb, s.name, "/run/netns/"+s.name, bin)
	}
	do("add")
	address, err := s.exec("sh", "-c", "ip -4 -o addr show eth0 | awk '{print $4}'")
	if err != nil {
		t.Fatal(err)
	}
	address = strings.TrimSuffix(strings.TrimSpace(address), "/32")
	stop := c.startServer(s.node, []string{"ip", "netns", "exec", s.name, self, "serve", "web", address})

	// By the node's port from the outside, from the other node and its pods,
	// and by its own address from pods; each is seen under its own address.
	outside := fmt.Sprintf("http://172.30.0.11:%d/", 18080)
	own := fmt.Sprintf("http://%s:%d/", address, lab.ServerPort)
	for _, f := range []struct {
		from place
		url  string
		seen string
	}{
		{"outside", outside, "172.30.0.1"},
		{"node/node2", outside, "172.30.0.12"},
		{"pod/far", outside, far.String()},
		{"pod/far", own, far.String()},
		{"pod/client", own, client.String()},
		{"pod/client", outside, client.String()},
	} {
		answer := c.mustExec(f.from, self, "fetch", f.url)
		if !strings.HasPrefix(answer, "web "+f.seen+":") {
			t.Errorf("%s asked %s, and the answer was %q; want it seen as %s", f.from, f.url, answer, f.seen)
		}
	}
	// Processes of the node are seen under its address, or as the gateway where they ask at a
	// loopback address, and the pod itself as that, too. One of a pod does not get to its node's
	// loopback address by that way.
	const loopback = "http://127.0.0.1:18080/"
	for url, seen := range map[string]string{outside: "172.30.0.11:", loopback: "10."} {
		if answer := c.mustExec("node/node1", self, "fetch", url); !strings.HasPrefix(answer, "web "+seen) {
			t.Errorf("the node asked %s, and the answer was %q; want it seen as %s", url, answer, seen)
		}
	}
	if answer, err := s.exec(self, "fetch", outside); err != nil || !strings.HasPrefix(answer, "web 10.") {
		t.Errorf("the pod asked its node's port, and the answer was %q: %v", answer, err)
	}
	if answer, err := c.exec("pod/client", self, "fetch", loopback); err == nil {
		t.Errorf("another pod asked its own loopback address, and the answer was %q", answer)
	}
	// What an agent that begins anew finds, it leaves as it is.
	if err := errors.Join(c.lab.Kill("node1"), c.lab.Start(t.Context(), "node1")); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() error {
		if ok, message := c.ready("node1"); !ok {
			return errors.New(message)
		}
		return nil
	})
	if answer := c.mustExec("outside", self, "fetch", outside); !strings.HasPrefix(answer, "web 172.30.0.1:") {
		t.Errorf("after the agent began anew the answer was %q", answer)
	}
	if tc := c.mustExec("node/node1", "tc", "qdisc", "show", "handle", "7765:"); strings.Count(tc, "rate 8Mbit") != 1 {
		t.Errorf("what limits the pod to 8 Mbit/s is not one token bucket: %s", tc)
	}
	stop()
	do("del")
	do("del")
	c.mustExec(s.node, "sh", "-ec", "umount /run/netns/web; rm /run/netns/web")
	// The runtime has its answer before the plan has followed.
	c.eventually(func() error {
		if after := c.mustExec("node/node1", "sh", "-c", "ip -o link | grep -c .; tc qdisc | grep -c tbf || true; nft list ruleset | grep -c 18080 || true; ls /run/netns | wc -l"); before != after {
			return fmt.Errorf("links, token buckets, entries of port 18080 and namespaces on the node were %q and are %q", before, after)
		}
		return nil
	})
}
