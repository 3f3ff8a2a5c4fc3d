package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/drops"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// dropsCluster is a registry with pods and nodes that have addresses.
func dropsCluster(t *testing.T) registry.Registry {
	reg := memory.New()
	for name, address := range map[string]string{"node1": "172.30.0.11", "node2": "172.30.0.12"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeHostName, Address: name}}
		if _, err := reg.Create(t.Context(), api.Node, n); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []struct {
		name, address string
		phase         corev1.PodPhase
		host          bool
	}{
		{"client", "10.1.2.9", corev1.PodRunning, false},
		{"agent", "172.30.0.12", corev1.PodRunning, true},
		{"done", "10.1.2.10", corev1.PodSucceeded, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: p.name}, Spec: corev1.PodSpec{HostNetwork: p.host},
			Status: corev1.PodStatus{Phase: p.phase, PodIP: p.address, PodIPs: []corev1.PodIP{{IP: p.address}}}}
		if _, err := reg.Create(t.Context(), api.Pod, pod); err != nil {
			t.Fatal(err)
		}
	}
	return reg
}

// answering is an agent that answers with one text after the other, and then
// has gone.
func answering(node string, answers ...string) askedAgent {
	var mu sync.Mutex
	return askedAgent{node: node, open: func(ctx context.Context, follow bool) (io.ReadCloser, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) == 0 {
			return nil, errors.New("connection refused")
		}
		answer := answers[0]
		answers = answers[1:]
		return io.NopCloser(strings.NewReader(answer)), nil
	}}
}

// TestDrops shows what agents that tell of the same cluster come to.
func TestDrops(t *testing.T) {
	golden.Archives(t, "testdata/drops.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var agents []askedAgent
		var out []txtar.File
		for _, f := range files {
			if node, ok := strings.CutSuffix(f.Name, ".json"); ok {
				agents = append(agents, answering(node, string(f.Data), string(f.Data)))
				out = append(out, f)
			}
		}
		agents = append(agents, answering("node3"))
		for _, format := range []string{"", "json"} {
			var text, errs bytes.Buffer
			d := &dropsCommand{agents: agents, names: &holders{reg: dropsCluster(t)}, out: &text, errs: &errs, format: format, zone: time.UTC, chosen: drops.All}
			err := d.once(t.Context())
			if err == nil || err.Error() != "not all nodes have told what they drop: node3" {
				t.Errorf("the error is %v", err)
			}
			name := map[string]string{"": "text", "json": "all"}[format]
			out = append(out, txtar.File{Name: name, Data: text.Bytes()})
		}
		return out
	})
}

// Where nobody answers, nothing is said to be so.
func TestNobodyTellsOfDrops(t *testing.T) {
	var text bytes.Buffer
	d := &dropsCommand{agents: []askedAgent{answering("node1"), answering("node2", "{")}, names: &holders{reg: dropsCluster(t)}, out: &text, zone: time.UTC, chosen: drops.All}
	err := d.once(t.Context())
	if want := "No dropped packet is known.\n\nThis is not all:\n  node node1: connection refused\n  node node2: the agent's answer is not whole\n"; err == nil || text.String() != want {
		t.Errorf("it ends with %v and says\n%s", err, text.String())
	}
}

// A packet that is followed is a line of JSON, or a document of YAML.
func TestFormatsOfFollowedDrops(t *testing.T) {
	for format, want := range map[string]string{
		"json": `{"time":"0001-01-01T00:00:00Z","node":"node1","direction":"","source":{"address":""},"destination":{"address":""},"protocol":"tcp"}` + "\n",
		"yaml": "---\ndestination:\n  address: \"\"\ndirection: \"\"\nnode: node1\nprotocol: tcp\nsource:\n  address: \"\"\ntime: \"0001-01-01T00:00:00Z\"\n",
	} {
		var text strings.Builder
		d := &dropsCommand{out: &text, format: format}
		for range 2 {
			if err := d.print(drops.Record{Node: "node1", Protocol: "tcp"}); err != nil {
				t.Fatal(err)
			}
		}
		if got := text.String(); got != want+want {
			t.Errorf("two packets are as %s\n%s", format, got)
		}
	}
}

// Agents that go are asked again, and missed once.
func TestDropsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := func(second int, to string) string {
			return fmt.Sprintf(`{"time":"2026-11-21T12:00:%02dZ","node":"node1","direction":"ingress","rule":"NetworkPolicy default/web ingress isolation",`+
				`"source":{"address":"10.1.2.9","port":4711},"destination":{"address":"10.1.1.2","pod":"default/%s","port":81},"protocol":"tcp"}`+"\n", second, to)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var text, errs bytes.Buffer
		d := &dropsCommand{names: &holders{reg: dropsCluster(t)}, out: &text, errs: &errs, zone: time.UTC, chosen: drops.All,
			agents: []askedAgent{answering("node1", line(1, "web")+line(2, "web"), line(3, "web")+line(4, "db")[:40])}}
		ended := make(chan error, 1)
		go func() { ended <- d.follow(ctx) }()
		time.Sleep(10 * askAgain)
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 4 || !strings.HasPrefix(lines[0], "TIME") {
			t.Errorf("there are %d lines:\n%s", len(lines), text.String())
		}
		for _, l := range lines[1:] {
			if !strings.Contains(l, "  shop/client  ") || !strings.Contains(l, "  default/web  ") {
				t.Error(l)
			}
		}
		if got, want := errs.String(), "node node1: the agent's answer is not whole; asking again\n"; got != want {
			t.Errorf("it says %q, not %q", got, want)
		}
		// Nobody reads it any more.
		d.out, d.agents = brokenPipe{}, []askedAgent{answering("node1", line(1, "web"))}
		d.format = "json"
		if err := d.follow(t.Context()); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the error is %v", err)
		}
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestAgentPods asks an agent's pod as an API server passes it on.
func TestAgentPods(t *testing.T) {
	var messages [][]byte // what is passed on to the next one who asks
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/weft-system/pods/weft-agent-a/exec" || r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusForbidden)
			json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Message: "pods is forbidden: no exec"})
			return
		}
		q := r.URL.Query()
		if !slices.Equal(q["command"], []string{"/weft-agent", "drops", "-o", "json", "-f", "--for", "10m0s"}) || q.Get("container") != "agent" {
			t.Errorf("asked is %s", q)
		}
		conn, err := (&websocket.Upgrader{Subprotocols: []string{execProtocol}}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for _, m := range messages {
			if err := conn.WriteMessage(websocket.BinaryMessage, m); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	reg := memory.New()
	for name, labels := range map[string]map[string]string{"weft-agent-a": agentLabels, "weft-controller": {"app.kubernetes.io/name": "weft"}} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: name, Labels: labels},
			Spec: corev1.PodSpec{NodeName: "node1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if _, err := reg.Create(t.Context(), api.Pod, pod); err != nil {
			t.Fatal(err)
		}
	}
	// Of a node without an agent's pod is said that there is none.
	if _, err := reg.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0"}}); err != nil {
		t.Fatal(err)
	}
	ask := func(token string, pass ...[]byte) (string, error) {
		messages = pass
		agents, err := agentPods(t.Context(), reg, &daemon.Cluster{REST: &rest.Config{Host: server.URL, BearerToken: token}, Namespace: "weft-system"})
		if err != nil || len(agents) != 2 || agents[0].node != "node0" || agents[1].node != "node1" {
			t.Fatal(agents, err)
		}
		if _, err := agents[0].open(t.Context(), true); err == nil || !strings.Contains(err.Error(), "no agent's pod") {
			t.Errorf("the error is %v", err)
		}
		answer, err := agents[1].open(t.Context(), true)
		if err != nil {
			return "", err
		}
		defer answer.Close()
		b, err := io.ReadAll(answer)
		return string(b), err
	}
	if _, err := ask("wrong"); err == nil || err.Error() != "exec in pod weft-system/weft-agent-a: pods is forbidden: no exec" {
		t.Errorf("without the right to: %v", err)
	}
	message := func(stream byte, text string) []byte { return append([]byte{stream}, text...) }
	success := message(execStatus, `{"status":"Success"}`)
	failure := message(execStatus, `{"status":"Failure","message":"command terminated with exit code 2"}`)
	complaint := message(execStderr, "error: it is late\n")
	if out, err := ask("secret", message(execStdout, ""), message(execStdout, "one "), complaint, message(execStdout, "two"), success); out != "one two" || err != nil {
		t.Errorf("it said %q, %v", out, err)
	}
	if out, err := ask("secret", complaint, failure); err == nil || !strings.HasSuffix(err.Error(), "command terminated with exit code 2: error: it is late") {
		t.Errorf("it said %q, %v", out, err)
	}
	for what, passed := range map[string][][]byte{"nonsense": {message(execStatus, "nonsense")}, "a cut connection": {message(execStdout, "one")}} {
		if out, err := ask("secret", passed...); err == nil {
			t.Errorf("of %s it said %q", what, out)
		}
	}
}

// An agent that hangs is named in the same words as by why --live, once or followed.
func TestSilentAgentsOfDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := askedAgent{node: "node1", open: func(ctx context.Context, _ bool) (io.ReadCloser, error) {
			<-ctx.Done()
			return nil, fmt.Errorf(`ask the agent at /proc/1/root: Get "http://agent/drops": %w`, ctx.Err())
		}}
		var text, errs bytes.Buffer
		d := &dropsCommand{agents: []askedAgent{hangs}, names: &holders{reg: dropsCluster(t)}, out: &text, errs: &errs, zone: time.UTC, chosen: drops.All}
		const want = "node node1: it has not answered in 5s: its agent may hang (see: weft status)"
		if err := d.once(t.Context()); err == nil || !strings.Contains(text.String(), want+"\n") {
			t.Errorf("it ends with %v and says\n%s", err, text.String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*nodeTime)
		defer cancel()
		if err := d.listen(ctx, hangs, nil); !errors.Is(err, errSilent) {
			t.Errorf("followed, it ends with %v", err)
		}
	})
}

// The addresses of nodes in the pods' subnets are nodes', also of nodes that are asked
// nothing.
func TestNodesHoldGateways(t *testing.T) {
	reg := dropsCluster(t)
	for i, name := range []string{"node1", "node2"} {
		s := &networkv1.HostSubnet{Host: name, HostIP: fmt.Sprint("172.30.0.1", i+1), Subnet: fmt.Sprintf("10.1.%d.0/24", i+1)}
		s.Name = name
		if _, err := reg.Create(t.Context(), api.HostSubnet, s); err != nil {
			t.Fatal(err)
		}
	}
	h := &holders{reg: reg}
	for address, want := range map[string]string{"10.1.1.1": "node/node1", "10.1.2.1": "node/node2", "10.1.2.0": "node/node2", "10.1.2.9": "shop/client", "10.1.2.10": "", "172.30.0.12": "node/node2"} {
		at := plan.Address{Network: plan.DefaultNetwork, IP: netip.MustParseAddr(address)}
		if got := h.of(t.Context(), at); got != want {
			t.Errorf("%s is %q, not %q", address, got, want)
		}
		// In another network it is somebody else's.
		if at.Network = "red"; h.of(t.Context(), at) != "" {
			t.Errorf("%s is %q", at, h.of(t.Context(), at))
		}
	}
}
