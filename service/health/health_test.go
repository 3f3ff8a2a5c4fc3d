package health

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// within runs the test again in a network namespace of its own, as the ports are those of a
// node, and returns true there.
func within(t *testing.T) bool {
	const inside = "WEFT_HEALTH_TEST"
	if os.Getenv(inside) == "" {
		if os.Getuid() != 0 {
			t.Skip("needs root, to make a network namespace")
		}
		cmd := exec.Command("unshare", "--net", os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return false
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 0, 0, 2), Mask: net.CIDRMask(32, 32)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// bench is a server that runs, and how the node does.
type bench struct {
	*Server
	mu      sync.Mutex
	state   State
	problem string
}

func run(t *testing.T) *bench {
	b := &bench{}
	b.Server = &Server{Log: slog.New(slog.DiscardHandler), Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "weft_ready 1") }),
		State: func() State { b.mu.Lock(); defer b.mu.Unlock(); return b.state },
		Problem: func(text string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.problem = text
		}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

func (b *bench) is(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = s
}

// eventually waits for what ask returns to begin with want.
func eventually(t *testing.T, want string, ask func() string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if got = ask(); strings.HasPrefix(got, want) {
			return
		}
	}
	t.Fatalf("the answer is %q, and not %q", got, want)
}

func ask(url string) string {
	c := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get(url)
	if err != nil {
		return "no answer: " + err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s%s", res.StatusCode, res.Header.Get("X-Load-Balancing-Endpoint-Weight"), body)
}

func TestAnswers(t *testing.T) {
	if !within(t) {
		return
	}
	b := run(t)
	const node, local, web = "http://127.0.0.1:10256", "http://127.0.0.1:10249", "http://[::1]:31000/any/path"
	at := func(url string) func() string { return func() string { return ask(url) } }
	// Before anything is loaded the node serves nothing, unless what was loaded before is there.
	eventually(t, `503 {"currentTime":`, at(node+"/healthz"))
	b.is(State{Found: true})
	eventually(t, `200 {"currentTime":`, at(node+"/healthz"))
	b.is(State{Updated: time.Now(), Unable: true})
	eventually(t, `503 {"currentTime":`, at(node+"/healthz"))
	b.is(State{Updated: time.Now()})
	if got := ask(node + "/healthz"); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `"nodeEligible":true`) {
		t.Errorf("of the node it is said: %s", got)
	}
	for path, want := range map[string]string{"/proxyMode": "200 nftables", "/metrics": "200 weft_ready 1\n", "/healthz": "200 ok"} {
		eventually(t, want, at(local+path))
	}
	if got := ask(node + "/metrics"); !strings.HasPrefix(got, "404 ") {
		t.Errorf("others may read: %s", got)
	}
	// A node that goes serves what it has, and is to get no more.
	b.is(State{Updated: time.Now(), Leaving: true})
	if got := ask(node + "/healthz"); !strings.HasPrefix(got, "503 ") || !strings.Contains(got, `"nodeEligible":false`) {
		t.Errorf("of a node that goes it is said: %s", got)
	}
	if got := ask(node + "/livez"); !strings.HasPrefix(got, "200 ") {
		t.Errorf("of a node that goes it is said at /livez: %s", got)
	}
	// A Service comes, has endpoints, has none, and goes.
	key := registry.Key{Namespace: "default", Name: "web"}
	b.is(State{Updated: time.Now()})
	b.Update([]service.Check{{Port: 31000, Service: key, Local: 2}})
	eventually(t, `200 2{"localEndpoints":2,"service":{"name":"web","namespace":"default"},"serviceProxyHealthy":true}`, at(web))
	b.Update([]service.Check{{Port: 31000, Service: key}})
	eventually(t, `503 0{"localEndpoints":0,`, at(web))
	b.Update([]service.Check{{Port: 31000, Service: key, Local: 1}})
	eventually(t, `200 1`, at(web))
	// What waits for more than a minute says that the node is behind.
	b.is(State{Updated: time.Now(), Since: time.Now().Add(-50 * time.Second)})
	eventually(t, `200 1`, at(web))
	b.is(State{Updated: time.Now(), Since: time.Now().Add(-70 * time.Second)})
	eventually(t, `503 1{"localEndpoints":1,"service":{"name":"web","namespace":"default"},"serviceProxyHealthy":false}`, at(web))
	eventually(t, `503 `, at(node+"/livez"))
	b.is(State{Updated: time.Now()})
	b.Update(nil)
	eventually(t, "no answer", at(web))
}

// TestPortsOfOthers has another program at a port, which is a problem unless it is kube-proxy.
func TestPortsOfOthers(t *testing.T) {
	if !within(t) {
		return
	}
	serve := func(address, body string) func() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })}
		go s.Serve(l)
		return func() { s.Close() }
	}
	proxy := serve(":10256", `{"lastUpdated": "2026-01-01 00:00:00 +0000 UTC","currentTime": "2026-01-01 00:00:00 +0000 UTC","nodeEligible": true}`)
	mode := serve("127.0.0.1:10249", "iptables")
	other := serve(":31000", "hello")
	single := serve("127.0.0.2:31001", `{"service": {"namespace": "default","name": "more"},"localEndpoints": 1,"serviceProxyHealthy": true}`)
	defer single()
	b := run(t)
	b.is(State{Updated: time.Now()})
	b.Update([]service.Check{{Port: 31000, Service: registry.Key{Namespace: "default", Name: "web"}, Local: 1},
		{Port: 31001, Service: registry.Key{Namespace: "default", Name: "more"}, Local: 1}})
	problem := func() string { b.mu.Lock(); defer b.mu.Unlock(); return b.problem }
	eventually(t, "those who ask about Services get no answer, or another program's: listen tcp :31000:", problem)
	if text := problem(); strings.Contains(text, "10256") || strings.Contains(text, "10249") || strings.Contains(text, "31001") {
		t.Errorf("of kube-proxy it is said: %s", text)
	}
	other()
	eventually(t, "200 1", func() string { return ask("http://127.0.0.1:31000/") })
	if text := problem(); text != "" {
		t.Errorf("it is still said: %s", text)
	}
	proxy()
	mode()
	// The node takes one port after the other.
	eventually(t, "200 nftables", func() string { return ask("http://127.0.0.1:10249/proxyMode") })
	eventually(t, "200 ", func() string { return ask("http://127.0.0.1:10256/healthz") })
}

// TestManyAsk has one machine hold more connections than it may, without a word. It is answered
// all the same, and so are others.
func TestManyAsk(t *testing.T) {
	if !within(t) {
		return
	}
	b := run(t)
	b.is(State{Updated: time.Now()})
	eventually(t, "200 ", func() string { return ask("http://127.0.0.1:10256/healthz") })
	for range 2 * mostOfOne {
		c, err := net.Dial("tcp", "127.0.0.1:10256")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for _, from := range []string{"127.0.0.1", "[::1]"} {
		if got := ask("http://" + from + ":10256/healthz"); !strings.HasPrefix(got, "200 ") {
			t.Errorf("%s is told: %s", from, got)
		}
	}
}

// TestCrowd has more connections than there may be: from one address, from many that have one
// each, and from one who has more than others.
func TestCrowd(t *testing.T) {
	var all crowd
	connect := func(address string) *counted {
		_, far := net.Pipe()
		c := &counted{Conn: far, crowd: &all, from: whose(&net.TCPAddr{IP: net.ParseIP(address)})}
		all.join(c)
		return c
	}
	open := func(c *counted) bool { return c.place != nil }
	holds := func(n int) {
		t.Helper()
		if sum := all.all.Len(); sum != n {
			t.Fatalf("%d connections are counted, want %d", sum, n)
		}
	}

	quiet := connect("192.0.2.1")
	first := connect("2001:db8::1")
	for n := range mostOfOne {
		connect(fmt.Sprintf("2001:db8::%x:1", n))
	}
	if open(first) || !open(quiet) {
		t.Errorf("one more of a /64 than may be: its first is there %t, another's %t", open(first), open(quiet))
	}
	if _, err := first.Conn.Write(nil); err == nil {
		t.Error("what is counted no more is not closed")
	}
	holds(1 + mostOfOne)
	for n := range mostOfAll {
		connect(fmt.Sprintf("10.%d.%d.1", n/256, n%256))
	}
	holds(mostOfAll)
	if heaviest := all.heaviest(); heaviest != 1 {
		t.Errorf("when each of as many addresses as there may be connections has come, one has %d", heaviest)
	}

	late := connect("192.0.2.2")
	if !open(late) {
		t.Error("where it is full, one more is not taken")
	}
	for range 2 * mostOfAll {
		connect("192.0.2.3")
	}
	if !open(late) {
		t.Error("one address that has many ends the connection of another")
	}
	holds(mostOfAll)
	late.Close()
	late.Close()
	holds(mostOfAll - 1)
}
