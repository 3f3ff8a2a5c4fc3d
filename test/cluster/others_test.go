package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// drizzlePort is where drizzle sends to, and pause how long it waits between two
// datagrams.
const (
	drizzlePort = 7000
	pause       = time.Millisecond
)

// drizzle sends datagrams to an address, without pause, until its input ends.
func drizzle(args []string) error {
	c, err := net.Dial("udp", net.JoinHostPort(args[0], strconv.Itoa(drizzlePort)))
	if err != nil {
		return err
	}
	defer c.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for {
		_, _ = c.Write([]byte("w")) // what is refused is an error now and then
		select {
		case <-ended:
			return nil
		case <-time.After(pause):
		}
	}
}

// catch prints, when its input ends, how many datagrams came to drizzlePort, and how
// many milliseconds the longest time was in which they kept coming. It says first that
// it listens.
func catch([]string) error {
	c, err := net.ListenPacket("udp", fmt.Sprintf(":%d", drizzlePort))
	if err != nil {
		return err
	}
	fmt.Println("listening")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		c.Close()
	}()
	const apart = 100 * time.Millisecond
	count, longest := 0, time.Duration(0)
	var began, last time.Time
	for b := make([]byte, 10); ; count++ {
		if _, _, err := c.ReadFrom(b); err != nil {
			fmt.Printf("%d %d\n", count, longest.Milliseconds())
			return nil
		}
		now := time.Now()
		if now.Sub(last) > apart {
			began = now
		}
		last, longest = now, max(longest, now.Sub(began))
	}
}

// counter reads a counter of an agent's metrics.
func (c *cluster) counter(node, name string) int {
	c.Helper()
	_, metrics := ask(c.T, c.runDir(node), "/metrics")
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(metrics)
	if m == nil {
		c.Fatalf("there is no %s in\n%s", name, metrics)
	}
	f, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		c.Fatal(err)
	}
	return int(f)
}

// rounds is how often an agent has brought its data plane to a plan, or has failed to.
func (c *cluster) rounds(node string) int {
	c.Helper()
	return c.counter(node, "weft_apply_seconds_count") + c.counter(node, "weft_apply_failures_total")
}

// triesSeldom wants an agent to try again ever more rarely what is refused to it.
func (c *cluster) triesSeldom(node string) {
	c.Helper()
	// It is tried after 1, 2 and 4 seconds, and there may be other reasons to go to work.
	const during, most = 7 * time.Second, 12
	before := c.rounds(node)
	time.Sleep(during)
	rounds := c.rounds(node) - before
	c.Logf("in %s the agent of %s went to work %d times", during, node, rounds)
	if rounds > most {
		c.Errorf("in %s the agent of %s went to work %d times, and %d is the most", during, node, rounds, most)
	}
}

func (c *cluster) agentLog(node string) string {
	c.Helper()
	b, err := os.ReadFile(filepath.Join(c.lab.Logs(), node+".log"))
	if err != nil {
		c.Fatal(err)
	}
	return string(b)
}

// tunnelDevice is the name of the device of a node's tunnel.
func (c *cluster) tunnelDevice(node string) string {
	c.Helper()
	name, _, ok := strings.Cut(strings.TrimSpace(c.mustExec(place("node/"+node), "sh", "-c", "ip -br link show type vxlan")), " ")
	if !ok {
		c.Fatalf("%s has no tunnel", node)
	}
	return name
}

// TestPacketFilterFlushedEverySecond has another program flush a node's nftables each
// second while a pod sends what a policy forbids. Each time little passes before the
// policy is in force again, it is said who does it, and the agent does no more than
// what there is to repair.
func TestPacketFilterFlushedEverySecond(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "flannel-networkpolicy"})
	web := c.policyPod("web", "node1", "web")
	c.policyPod("stranger", "node2", "stranger")
	c.mustReach("pod/stranger", web)

	background := func(p place, args ...string) (stop func() string) {
		in, write := io.Pipe()
		out := &bytes.Buffer{}
		done := make(chan error, 1)
		go func() {
			done <- c.execute(p, lab.Command{Args: append([]string{self}, args...), Stdin: in, Stdout: out, Stderr: out})
		}()
		return func() string {
			write.Close()
			if err := <-done; err != nil {
				c.Fatalf("%s in %s: %v\n%s", args, p, err, out)
			}
			return out.String()
		}
	}
	pour := func(f func()) (count, longest int) {
		caught := background("pod/web", "catch")
		sent := background("pod/stranger", "drizzle", web.String())
		f()
		sent()
		if _, err := fmt.Sscanf(strings.TrimPrefix(caught(), "listening\n"), "%d %d", &count, &longest); err != nil {
			c.Fatal(err)
		}
		t.Logf("%d datagrams came, for %d ms in a row at most", count, longest)
		return count, longest
	}
	if count, _ := pour(func() { time.Sleep(time.Second) }); count == 0 {
		t.Fatal("without a policy nothing arrives")
	}
	c.apply(fmt.Sprintf(isolateAll, "web"))
	c.mustNotReach("pod/stranger", web)

	const flushes = 14
	before := c.rounds("node1")
	count, longest := pour(func() {
		for range flushes {
			c.mustExec("node/node1", "nft", "flush", "ruleset")
			time.Sleep(time.Second)
		}
	})
	// A repair takes some milliseconds, and an agent that has to wait for a processor
	// longer, at times for more than one flush; one that only looked after the repair interval
	// would let all pass.
	if longest > 4000 || count > flushes*500 {
		t.Errorf("in %d flushes %d datagrams passed that a policy forbids, for %d ms in a row", flushes, count, longest)
	}
	if rounds := c.rounds("node1") - before; rounds < flushes/2 || rounds > 5*flushes {
		t.Errorf("for %d flushes the agent went to work %d times", flushes, rounds)
	}
	c.wantStatus(1, "node node1: repair: others keep changing what is Weft's, the last time nftables table inet weft", "by nft (process ")
	c.mustNotReach("pod/stranger", web)
}

// TestForeignRoute has another program's route in the way of one of a node's. It is said
// once, all else goes on, it is tried again ever more rarely, and the route comes
// when the other's is gone.
func TestForeignRoute(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "flannel"})
	here, there := c.run("web", "node1")[0], c.run("db", "node2")[0]
	c.mustSee("pod/web", there, here)
	prefix := strings.Fields(c.mustExec("node/node1", "sh", "-c", "ip route show proto 87 | grep "+c.tunnelDevice("node1")))[0]
	if !netip.MustParsePrefix(prefix).Contains(there) {
		t.Fatalf("%s is no route to %s", prefix, there)
	}
	c.weft("", "status").want(t, 0)
	c.mustExec("node/node1", "ip", "route", "replace", prefix, "via", "172.30.0.1", "proto", "static")
	c.wantStatus(1, "flannellease "+strings.ReplaceAll(prefix, "/", "-")+": add route "+prefix+": another program's route is in the way; delete that: ip route del "+prefix+" via 172.30.0.1 dev eth0")
	c.triesSeldom("node1")
	// What is new comes all the same.
	late := c.run("late", "node1")[0]
	c.mustSee("pod/web", late, here)
	if n := strings.Count(c.agentLog("node1"), "the node is out of sync"); n < 1 || n > 2 {
		t.Errorf("it was said %d times that the node is out of sync", n)
	}
	if route := c.mustExec("node/node1", "ip", "route", "show", prefix); !strings.Contains(route, "proto static") {
		t.Errorf("the other program's route is %q now", route)
	}
	c.mustExec("node/node1", "ip", "route", "del", prefix, "proto", "static")
	c.mustSee("pod/web", there, here)
	c.wantStatus(0, "No problems.")
}

// TestDeviceNameTaken has somebody else's interface with the name that the tunnel's device is
// to have, so that a node's kernel refuses what the plan says of other nodes. Nothing
// goes there by another way, policies and pods of the node work, it is said, and it is
// tried again ever more rarely.
func TestDeviceNameTaken(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "flannel-networkpolicy"})
	here, there := c.policyPod("web", "node1", "web"), c.policyPod("db", "node2", "db")
	c.policyPod("near", "node1", "near")
	c.mustReach("pod/near", here)
	c.mustReach("pod/web", there)
	tunnel := c.tunnelDevice("node1")
	c.mustExec("node/node1", "sh", "-ec", "ip link add mine type bridge; until ip link del "+tunnel+"; ip link set mine name "+tunnel+"; do :; done; ip link set "+tunnel+" up")
	c.wantStatus(1, "interface "+tunnel+" is in the way: Weft needs the name for a vxlan device, and it is a bridge; delete it (ip link del "+tunnel+") or rename it")
	c.triesSeldom("node1")
	c.mustNotReach("pod/web", there)
	if way, err := c.exec("node/node1", "ip", "route", "get", there.String(), "from", here.String(), "iif", "lo"); err == nil && !strings.Contains(way, "unreachable") {
		t.Errorf("the way to other nodes is %s", way)
	}
	c.mustReach("pod/near", here)
	c.apply(fmt.Sprintf(isolateAll, "web"))
	c.mustNotReach("pod/near", here)
	c.weft("", "delete", "networkpolicy", "isolate-web").want(t, 0)
	c.mustReach("pod/near", here)
	c.mustExec("node/node1", "ip", "link", "del", tunnel)
	c.mustReach("pod/web", there)
	c.wantStatus(0, "No problems.")
}

// TestDataPlaneAnnotation has a Node ask for data planes: for the one that it has, for
// one that there is not, and no longer for any.
func TestDataPlaneAnnotation(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1, Plugin: "flannel"})
	web, db := c.run("web", "node1")[0], c.run("db", "node1")[0]
	c.mustSee("pod/web", db, web)
	reg := c.registry()
	ask := func(name string) {
		t.Helper()
		_, err := registry.Modify(t.Context(), reg, api.Node, registry.Key{Name: "node1"}, func(n *corev1.Node) error {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, api.DataPlaneAnnotation, name)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	uses := func(want api.DataPlaneReport) {
		t.Helper()
		c.eventually(func() error {
			n, err := get[*corev1.Node](c, reg, api.Node, "node1")
			if err != nil {
				return err
			}
			if r, err := api.NodeDataPlane(n); err != nil || r != want {
				return fmt.Errorf("the node reports %+v (%w)", r, errors.Join(err))
			}
			return nil
		})
	}
	uses(api.DataPlaneReport{Uses: "linux"})
	ask("abacus")
	c.wantStatus(1, `node node1: data plane: annotation weft.network/data-plane asks for data plane "abacus", which is unknown: there is linux; the node goes on with linux`)
	c.mustSee("pod/web", db, web)
	if err := errors.Join(c.lab.Kill("node1"), c.lab.Start(t.Context(), "node1")); err != nil {
		t.Fatal(err)
	}
	c.mustSee("pod/web", c.run("late", "node1")[0], web)
	ask("linux")
	c.wantStatus(0, "No problems.")
	uses(api.DataPlaneReport{Uses: "linux"})
	c.weft("", "status").want(t, 0)
}
