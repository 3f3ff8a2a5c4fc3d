package cni

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
)

func FuzzDecode(f *testing.F) {
	add := func(r protocol.Request) {
		line, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	add(protocol.Request{ID: "1", Command: "ADD", ContainerID: "c1", IfName: "eth0", NetNS: "/run/netns/a", Args: "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b",
		Stdin: []byte(`{"cniVersion":"1.1.0","name":"weft"}`)})
	for _, prev := range []string{`{"cniVersion":"0.4.0","interfaces":[{"name":"eth0"}],"ips":[{"version":"4","address":"10.1.0.2/32"}]}`,
		`{"interfaces":[null],"ips":[null],"routes":[null]}`, `{"ips":[{}]}`, `[]`} {
		add(protocol.Request{ID: "1", Command: "CHECK", ContainerID: "c1", IfName: "eth0", NetNS: "/run/netns/a",
			Stdin: []byte(`{"cniVersion":"0.4.0","name":"weft","prevResult":` + prev + `}`)})
	}
	add(protocol.Request{ID: "1", Command: "GC", Stdin: []byte(`{"cniVersion":"1.1.0","name":"weft","cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"}]}`)})
	a := reservedAttachment()
	f.Fuzz(func(t *testing.T, line []byte) {
		var r protocol.Request
		if json.Unmarshal(line, &r) != nil {
			return
		}
		c, failure := decode(&r)
		if failure != nil {
			if failure.Code == 0 || failure.Msg == "" || failure.Details == "" {
				t.Errorf("an error that says nothing: %+v", failure)
			}
			return
		}
		if c.command == protocol.Add || c.command == protocol.Check {
			if c.key.ContainerID == "" || strings.ContainsAny(c.key.ContainerID, "/ \n") || !filepath.IsAbs(c.netns) || badIfName(c.key.IfName) != "" {
				t.Errorf("accepted %+v", c)
			}
		}
		if c.command == protocol.Check {
			// Whatever the runtime remembers, comparing does not crash.
			if c.prevResult == nil {
				t.Error("CHECK without a result was accepted")
			} else if compareResult(c.prevResult, a) == nil && len(c.prevResult.IPs) == 0 {
				t.Error("a result without addresses was accepted")
			}
		}
	})
}

func TestLocksAreWaitedForOnlySoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l locks
		release, err := l.acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		// Another key's lock is free.
		other, err := l.acquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		other()
		ctx, cancel := context.WithTimeout(t.Context(), msec(100))
		defer cancel()
		if _, err := l.acquire(ctx, "a"); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		got := make(chan func())
		go func() {
			r, err := l.acquire(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
		synctest.Wait()
		release()
		(<-got)()
		if len(l.held) != 0 {
			t.Errorf("%d locks are left", len(l.held))
		}
	})
}

func TestListen(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "run", "agent.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode() != want {
			t.Errorf("%s has the mode %v, want %v", p, info.Mode(), want)
		}
	}
	refuse := func(path, want string) {
		t.Helper()
		if l, err := Listen(path); err == nil {
			l.Close()
			t.Errorf("%s: no error", path)
		} else if err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	}
	refuse(path, "somebody listens at "+path+": is an agent running on this node already?")
	first.Close()
	second, err := Listen(path)
	if err != nil {
		t.Fatalf("a dead agent's socket was not replaced: %v", err)
	}
	defer second.Close()
	go func() {
		if conn, err := second.Accept(); err == nil {
			conn.Close()
		}
	}()
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refuse(file, file+" is there and is not a socket: remove it or choose another path")
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	refuse(filepath.Join(open, "s"), "the socket's directory "+open+" may be written by others than its owner root: choose another, or chmod go-w it")
	long := "/" + strings.Repeat("x", 120)
	refuse(long, "the socket's path "+long+" has 121 characters; at most 103 are possible")
}

func reservedAttachment() ipam.Attachment {
	return ipam.Attachment{
		Request:   ipam.Request{Key: ipam.Key{ContainerID: "c1", IfName: "eth0"}, Network: plan.DefaultNetwork, HostInterface: "weft0", NetNS: "/run/netns/a"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
		Router: netip.MustParseAddr("10.1.0.1"), Phase: ipam.Ready,
	}
}
