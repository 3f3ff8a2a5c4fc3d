package attack

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/weftnet/weft/cni/protocol"
)

// agentSocket is where an agent takes CNI requests, on its node.
const agentSocket = "/run/weft/agent.sock"

// cniAttacks are those by the socket on which agents take CNI requests.
var cniAttacks = []attack{
	{
		name: "agents_sockets_from_a_pod", by: podWithAdmin, ip: noFamily,
		must: "reach the sockets of its node's agent",
		try: func(t *trial) {
			t.knock(t.hand(t.pods["mallory"]), "", "/proc/1/root", "/proc/self/root", "\x00")
		},
	},
	{
		name: "agents_sockets_by_another_user", by: nodeUser, ip: noFamily,
		must: "have a request answered by the agent",
		try: func(t *trial) {
			t.knock(t.hand(t.nodes["node1"]), "", fmt.Sprintf("/proc/%d/root", t.lab.PID("node1")))
		},
	},
	{
		name: "malformed_cni_requests", by: runtimeOf, ip: noFamily,
		must: "end the agent, or leave something behind",
		try: func(t *trial) {
			var raw [][]byte
			for _, text := range []string{"\n", "{\n", "null\n", "7\n", `"x"` + "\n", "[]\n", "{}\n", `{"version":1}` + "\n", `{"version":99,"id":"x","command":"STATUS"}` + "\n",
				`{"version":1,"id":"x","command":"STATUS","stdin":"bm8="}` + "\n", `{"version":1,"id":"x","command":"EXEC","stdin":"e30="}` + "\n",
				strings.Repeat("[", 100_000) + "\n", `{"version":1e999}` + "\n", "\x00\xff\xfe\n", "GET / HTTP/1.1\r\n\r\n",
				`{"version":1,"id":"` + strings.Repeat("x", 1<<20) + `","command":"STATUS","stdin":"e30="}` + "\n"} {
				raw = append(raw, []byte(text))
			}
			raw = append(raw, make([]byte, protocol.MaxMessage+1))
			t.harmless(raw)
		},
	},
	{
		name: "cni_requests_with_hostile_names", by: runtimeOf, ip: noFamily,
		must: "have the agent look, write or plug somewhere else, by container IDs, paths and names that lead there",
		try: func(t *trial) {
			t.sh(t.owner(t.nodes["node1"]), "mkfifo /run/fifo; mkdir -p /run/directory")
			good := protocol.Request{Version: protocol.Version, ID: "x", Command: protocol.Add, ContainerID: "hostile", NetNS: "/run/netns/none", IfName: "eth0",
				Stdin: []byte(`{"cniVersion": "1.1.0", "name": "weft", "type": "weft-cni"}`)}
			var requests [][]byte
			try := func(change func(*protocol.Request)) {
				for _, command := range []string{protocol.Add, protocol.Check, protocol.Del} {
					r := good
					r.Command = command
					change(&r)
					line, err := json.Marshal(r)
					if err != nil {
						t.Fatal(err)
					}
					requests = append(requests, append(line, '\n'))
				}
			}
			for _, id := range []string{"", ".", "..", "../../../tmp/x", "a/b", "/etc/passwd", "a\nb", "a\x00b", "%d%s%n", "$(reboot)", "-rf", strings.Repeat("a", 129), "\u202e", "a b"} {
				try(func(r *protocol.Request) { r.ContainerID = id })
			}
			for _, name := range []string{"", ".", "..", "../eth0", "a/b", "%d", "eth%d", "a b", "a:b", strings.Repeat("a", 16), "a\x00b", "é"} {
				try(func(r *protocol.Request) { r.IfName = name })
			}
			for _, path := range []string{"", "relative", "/etc/passwd", "/run/netns/../../etc/passwd", "/dev/zero", "/run/directory", "/proc/self/ns/mnt", "/proc/self/ns/net", "/proc/1/ns/pid",
				strings.Repeat("/a", 3000), "/run/netns/\x00", "/nowhere"} {
				try(func(r *protocol.Request) { r.NetNS = path })
			}
			for _, args := range []string{"K8S_POD_NAME=../x;K8S_POD_NAMESPACE=y", "K8S_POD_NAME=x", "=", ";;;", "K8S_POD_NAME=a\nb;K8S_POD_NAMESPACE=b", "K8S_POD_UID=" + strings.Repeat("x", 65),
				"K8S_POD_NAME=" + strings.Repeat("x", 300) + ";K8S_POD_NAMESPACE=b"} {
				try(func(r *protocol.Request) { r.Args = args; r.NetNS = "/etc/passwd" })
			}
			t.harmless(requests)
		},
	},
	{
		name: "cni_request_for_the_nodes_own_namespace", by: runtimeOf, ip: noFamily,
		must: "have the agent take the node's own network namespace for a pod's",
		try: func(t *trial) {
			node := t.owner(t.nodes["node1"])
			t.sh(node, "touch /run/netns/own; mount --bind /proc/self/ns/net /run/netns/own")
			defer t.sh(node, "umount /run/netns/own; rm /run/netns/own")
			line, err := json.Marshal(protocol.Request{Version: protocol.Version, ID: "own", Command: protocol.Add, ContainerID: "own", NetNS: "/run/netns/own", IfName: "eth7",
				Stdin: []byte(`{"cniVersion": "1.1.0", "name": "weft", "type": "weft-cni"}`)})
			if err != nil {
				t.Fatal(err)
			}
			t.harmless([][]byte{append(line, '\n')})
		},
	},
	{
		name: "cni_requests_that_never_end", by: runtimeOf, ip: noFamily,
		must: "keep others' pods from starting, by connections that say nothing and paths that never open",
		try: func(t *trial) {
			node := t.nodes["node1"]
			t.sh(t.owner(node), "mkfifo /run/fifo 2>/dev/null || true")
			first := "{"
			slow := newHand(t.T, "of one who is slow", all, node.execute)
			line, err := json.Marshal(protocol.Request{Version: protocol.Version, ID: "fifo", Command: protocol.Add, ContainerID: "fifo", NetNS: "/run/fifo", IfName: "eth0",
				Stdin: []byte(`{"cniVersion": "1.1.0", "name": "weft", "type": "weft-cni"}`)})
			if err != nil {
				t.Fatal(err)
			}
			t.must(slow, order{Do: "hold", Path: agentSocket, Data: []byte(first), Count: 250})
			for i := range 8 {
				named := strings.ReplaceAll(string(line), `"fifo"`, fmt.Sprintf(`"fifo%d"`, i))
				t.must(slow, order{Do: "hold", Path: agentSocket, Data: []byte(named + "\n"), Count: 1})
			}
			started := make(chan error, 1)
			m := t.sandbox("node1")
			go func() { started <- t.attach(m, 0, 0) }()
			select {
			case err := <-started:
				if err != nil {
					t.breach("a pod does not start: %v", err)
				}
			case <-time.After(patience):
				t.breach("a pod does not start within %s", patience)
				slow.end()
				if err := <-started; err != nil {
					t.Logf("it starts when they are gone: %v", err)
				}
			}
			slow.end()
			t.alive("node1")
		},
	},
}

// asRoot has the agent of node1 asked by root, and returns its answer.
func (t *trial) asRoot(request []byte) (string, error) {
	r, err := t.owner(t.nodes["node1"]).order(order{Do: "unix", Path: agentSocket, Data: request, Wait: 10 * time.Second})
	return r.Output, err
}

// statusRequest asks whether pods can be networked.
const statusRequest = `{"version":1,"id":"status","command":"STATUS","stdin":"eyJjbmlWZXJzaW9uIjogIjEuMS4wIiwgIm5hbWUiOiAid2VmdCIsICJ0eXBlIjogIndlZnQtY25pIn0="}` + "\n"

// alive shows that an agent answers.
func (t *trial) alive(node string) {
	t.Helper()
	eventually(t, func() error {
		r, err := t.owner(t.nodes[node]).order(order{Do: "unix", Path: agentSocket, Data: []byte(statusRequest), Wait: 10 * time.Second})
		if err == nil && (!strings.Contains(r.Output, `"version":1`) || strings.Contains(r.Output, "error")) {
			err = fmt.Errorf("the agent of %s answers %s", node, r.Output)
		}
		return err
	})
	t.controls++
}

// knock tries the agent's sockets below some roots; "\x00" stands for the names
// that are no files.
func (t *trial) knock(h *hand, roots ...string) {
	t.Helper()
	for _, root := range roots {
		for _, socket := range []string{agentSocket, "/run/weft/http.sock"} {
			for _, request := range []string{statusRequest, "GET /plan HTTP/1.0\r\n\r\n"} {
				path := root + socket
				if root == "\x00" {
					path = "@" + socket
				}
				if r, err := h.order(order{Do: "unix", Path: path, Data: []byte(request)}); err == nil && r.Output != "" {
					t.breach("%q answers %s", path, r.Output[:min(len(r.Output), 80)])
				}
			}
		}
	}
	t.alive("node1")
	if r, err := t.owner(t.nodes["node1"]).order(order{Do: "unix", Path: "/run/weft/http.sock", Data: []byte("GET /plan HTTP/1.0\r\n\r\n")}); err != nil || r.Output == "" {
		t.Fatalf("control: root is not answered: %v", err)
	}
}

// harmless sends requests that ask for what cannot be, and says that the attack
// succeeded if one is granted, the agent ends, or something is left on the
// node.
func (t *trial) harmless(requests [][]byte) {
	t.Helper()
	node := t.owner(t.nodes["node1"])
	inventory := func() string {
		return t.sh(node, `ip -o link | sed 's/^[0-9]*: //; s/ .*//' | sort; ip -o addr show dev eth0; ip route; find /run/weft /run/netns /run/directory -type f 2>/dev/null | grep -v journal | sort; ls /tmp/x /run/x 2>/dev/null || true`)
	}
	before, pid := inventory(), t.lab.PID("node1")
	for _, request := range requests {
		answer, err := t.asRoot(request)
		if err == nil && !strings.Contains(answer, `"error"`) && !strings.Contains(string(request), `"DEL"`) {
			t.breach("it is granted: %.200q: %.200s", request, answer)
		}
	}
	t.alive("node1")
	if now := t.lab.PID("node1"); now != pid {
		t.breach("the agent ended: it was %d and is %d", pid, now)
	}
	if after := inventory(); after != before {
		t.breach("the node has\n%s\nand had\n%s", after, before)
	}
	// A request that is in order is granted.
	if err := t.attach(t.sandbox("node1"), 0, 0); err != nil {
		t.Fatalf("control: %v", err)
	}
}
