package cluster

import (
	"bufio"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plan"
)

var whySeed = flag.Uint64("why-seed", 0, "seed of the random destinations of TestWhyAsTheKernel (default: another one each time)")

// TestWhyAsTheKernel sends from pods, nodes and the world outside to random
// addresses of every sort that a kernel treats in a way of its own, and holds
// where each packet arrives, and from whom, against what weft why says.
func TestWhyAsTheKernel(t *testing.T) {
	seed := cmp.Or(*whySeed, uint64(time.Now().UnixNano()))
	for name, o := range map[string]lab.Options{
		"openshift-networkpolicy": {Plugin: "openshift-networkpolicy", IPv6: true},
		"flannel vxlan":           {Plugin: "flannel", IPv6: true},
		"flannel host-gw": {Plugin: "flannel", IPv6: true, Objects: []lab.Object{flannelConfig(
			`{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd05::/48", "Backend": {"Type": "host-gw"}}`)}},
	} {
		o.Nodes = 2
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Logf("the seed is %d", seed)
			asTheKernel(t, o, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

// whyPolicies isolate pod guarded in both directions but for a little, so that
// policies are asked about every sort of address, too.
const whyPolicies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guarded}
spec:
  podSelector: {matchLabels: {app: guarded}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 9000}]
  egress:
  - to: [{ipBlock: {cidr: 224.0.0.0/8}}, {ipBlock: {cidr: 172.30.0.0/16}}, {podSelector: {}}]
`

func asTheKernel(t *testing.T, o lab.Options, random *rand.Rand) {
	c := up(t, o)
	sources := []end{}
	for _, p := range []struct{ name, node string }{{"client", "node1"}, {"guarded", "node1"}, {"far", "node2"}} {
		addresses, err := c.lab.Run(c.Context(), lab.Pod{Name: p.name, Node: p.node, Labels: map[string]string{"app": p.name}})
		if err != nil {
			c.Fatal(err)
		}
		sources = append(sources, end{place("pod/" + p.name), p.name, addresses})
	}
	for i, node := range c.lab.Nodes() {
		sources = append(sources, end{place("node/" + node), "node/" + node,
			[]netip.Addr{netip.AddrFrom4([4]byte{172, 30, 0, byte(11 + i)}), netip.MustParseAddr(fmt.Sprintf("fd30::%d", 11+i))}})
	}
	sources = append(sources, end{"outside", lab.Outside.String(), []netip.Addr{lab.Outside, lab.Outside6}})
	if o.Plugin == "openshift-networkpolicy" {
		c.apply(whyPolicies)
		c.eventually(func() error {
			if said := c.weft("", "policy", "status", "networkpolicy/guarded"); said.code != 0 {
				return fmt.Errorf("the policy is not in force: %s", said.stdout)
			}
			return nil
		})
	}
	c.routesOutside(sources)
	arrived := c.collect(sources)
	var thrown []*throw
	for _, from := range sources {
		thrown = append(thrown, throwsOf(random, from, sources)...)
	}
	cluster := c.plans(o.Plugin)
	for i, x := range thrown {
		x.word = fmt.Sprintf("word%d.", i)
		var err error
		x.says, err = cluster.Why(explain.Question{Namespace: lab.DefaultNamespace, Source: x.source(), Destination: x.to.String(), Protocol: x.protocol, Port: collectPort})
		if err != nil {
			c.Fatalf("%s: %v", x, err)
		}
	}
	// What must not arrive is sent first: by the time when all that must has
	// arrived, it would have, too.
	for _, allowed := range []bool{false, true} {
		var sending sync.WaitGroup
		for _, from := range sources {
			sending.Go(func() { c.throw(from, thrown, allowed) })
		}
		sending.Wait()
	}
	deadline := time.Now().Add(patience / 3)
	for _, x := range thrown {
		want := x.receiver()
		if want == "" {
			continue
		}
		for len(arrived.of(x.word)) == 0 {
			if time.Now().After(deadline) {
				t.Errorf("%s should arrive at %s, but does not:\n%s", x, want, x.says.Verbose())
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, x := range thrown {
		for _, got := range arrived.of(x.word) {
			if x.several() && got.at != x.receiver() {
				continue // a group's other members, the sender not least
			}
			if want := (arrival{x.receiver(), x.says.SeenSource}); got != want {
				t.Errorf("%s arrives at %s from %s; expected at %q from %s, as\n%s", x, got.at, got.from, want.at, want.from, x.says.Verbose())
			}
		}
	}
	t.Logf("%d packets, of which %d arrived", len(thrown), len(arrived.words()))
}

// routesOutside makes the world outside know where pods are: behind their nodes.
func (c *cluster) routesOutside(ends []end) {
	c.Helper()
	for _, e := range ends[:3] {
		node := ends[3]
		if e.name == "far" {
			node = ends[4]
		}
		for i, a := range e.addresses {
			bits := map[bool]int{true: 24, false: 64}[a.Is4()]
			c.mustExec("outside", "ip", "route", "replace", netip.PrefixFrom(a, bits).Masked().String(), "via", node.addresses[i].String())
		}
	}
}

// throw is something that is sent to see where it arrives.
type throw struct {
	from     end
	to       netip.Addr
	sort     string
	protocol plan.Protocol
	word     string
	says     explain.Answer
}

func (x *throw) String() string {
	return fmt.Sprintf("%s to %s (%s), %s", x.from.name, x.to, x.sort, x.protocol)
}

// several reports whether it is sent to more than one machine.
func (x *throw) several() bool {
	return plan.IsGroup(x.to) || x.to == underlayBroadcast && x.from.place != "outside"
}

// underlayBroadcast is the lab's.
var underlayBroadcast = netip.MustParseAddr("172.30.255.255")

// source is what weft why is asked about. An address of the world outside says
// of which family it is.
func (x *throw) source() string {
	if x.from.place == "outside" && x.to.Is6() {
		return lab.Outside6.String()
	}
	return x.from.name
}

// receiver is who must get it: the place of a collector; "" is nobody who could
// tell.
func (x *throw) receiver() place {
	switch {
	case !x.says.Allowed:
		return ""
	case x.says.Interface != "":
		_, pod, _ := strings.Cut(x.says.Interface, "/")
		return place("pod/" + pod)
	case x.says.Node != "":
		return place("node/" + x.says.Node)
	case x.to == lab.Outside || x.to == lab.Outside6:
		return "outside"
	default:
		return ""
	}
}

// throwsOf returns what one end sends to others: to an address of each sort.
func throwsOf(random *rand.Rand, from end, all []end) []*throw {
	within := func(prefix string) netip.Addr {
		p := netip.MustParsePrefix(prefix)
		b := p.Addr().AsSlice()
		for i := range b {
			free := 8 - min(8, max(0, p.Bits()-8*i))
			b[i] |= byte(random.UintN(1 << free))
		}
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	sorts := map[string][]netip.Addr{}
	for _, e := range all {
		if from.place == "outside" && e.place == "outside" {
			continue // which is not the cluster's
		}
		sorts["an address of "+e.name] = e.addresses
	}
	for _, pod := range all[:3] {
		for _, a := range pod.addresses {
			gateway := a.Prev() // pods' are the next ones
			for gateway.Prev().AsSlice()[len(gateway.AsSlice())-1] != 0 {
				gateway = gateway.Prev()
			}
			sorts["the gateway of "+pod.name] = append(sorts["the gateway of "+pod.name], gateway)
			sorts["nobody beside "+pod.name] = append(sorts["nobody beside "+pod.name], beyond(a, 50+random.IntN(100)))
		}
	}
	if from.place != "outside" { // whose packets to these stay with it
		sorts["loopback"] = []netip.Addr{within("127.0.0.0/8"), netip.IPv6Loopback()}
		sorts["unspecified"] = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		sorts["all on the link"] = []netip.Addr{netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("ff02::1")}
		sorts["multicast"] = []netip.Addr{within("239.0.0.0/8"), within("ff05::/16")}
		sorts["broadcast"] = []netip.Addr{netip.MustParseAddr("255.255.255.255")}
		sorts["the underlay's broadcast and anycast"] = []netip.Addr{underlayBroadcast, netip.MustParseAddr("fd30::")}
		sorts["link-local"] = []netip.Addr{within("169.254.0.0/16"), within("fe80::/64")}
		sorts["the node's link-local"] = []netip.Addr{netip.MustParseAddr("fe80::1")}
		sorts["the world"] = []netip.Addr{within("198.18.0.0/15"), within("2001:db8::/32"), within("240.0.0.0/5")}
	}
	var throws []*throw
	for _, sort := range slices.Sorted(func(yield func(string) bool) {
		for s := range sorts {
			if !yield(s) {
				return
			}
		}
	}) {
		for _, a := range sorts[sort] {
			for _, protocol := range []plan.Protocol{plan.TCP, plan.UDP} {
				throws = append(throws, &throw{from: from, to: a, sort: sort, protocol: protocol})
			}
		}
	}
	return throws
}

// throw sends what an end is to send, of what is or is not expected to arrive.
func (c *cluster) throw(from end, all []*throw, allowed bool) {
	var lines strings.Builder
	for _, x := range all {
		if x.from.place == from.place && x.says.Allowed == allowed {
			fmt.Fprintln(&lines, x.protocol, x.to, x.word)
		}
	}
	var out strings.Builder
	if err := c.execute(from.place, lab.Command{Args: []string{self, "throw"}, Stdin: strings.NewReader(lines.String()), Stdout: &out, Stderr: &out}); err != nil {
		c.Errorf("%s: %v: %s", from.place, err, out.String())
	}
}

// collectPort is where collectors listen.
const collectPort = 9000

// arrival is where a word arrived, and from whom.
type arrival struct {
	at   place
	from netip.Addr
}

type arrivals struct {
	mu  sync.Mutex
	all map[string][]arrival
}

func (a *arrivals) of(word string) []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all[word])
}

func (a *arrivals) words() map[string][]arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all
}

// collect runs a collector at each of several ends until the test ends.
func (c *cluster) collect(ends []end) *arrivals {
	c.Helper()
	a := &arrivals{all: make(map[string][]arrival)}
	for _, e := range ends {
		inRead, inWrite := io.Pipe()
		outRead, outWrite := io.Pipe()
		var running sync.WaitGroup
		var errs strings.Builder
		running.Go(func() {
			err := c.execute(e.place, lab.Command{Args: []string{self, "collect"}, Stdin: inRead, Stdout: outWrite, Stderr: &errs})
			outWrite.CloseWithError(fmt.Errorf("%w: %s", cmp.Or(err, io.EOF), errs.String()))
		})
		lines := bufio.NewScanner(outRead)
		if !lines.Scan() {
			c.Fatalf("collector on %s: %v", e.place, lines.Err())
		}
		running.Go(func() {
			for lines.Scan() {
				word, from, _ := strings.Cut(lines.Text(), " ")
				a.mu.Lock()
				if got := (arrival{e.place, netip.MustParseAddr(from)}); !slices.Contains(a.all[word], got) {
					a.all[word] = append(a.all[word], got)
				}
				a.mu.Unlock()
			}
		})
		c.Cleanup(func() { inWrite.Close(); outRead.Close(); running.Wait() })
	}
	return a
}

// collect prints a line for each word that arrives at any address of where it
// runs, over TCP or UDP, with the address that it came from.
func collect([]string) error {
	listen := ":" + strconv.Itoa(collectPort)
	say := func(word []byte, from net.Addr) {
		if a, err := netip.ParseAddrPort(from.String()); err == nil && len(word) > 0 {
			fmt.Printf("%s %s\n", word, a.Addr().Unmap().WithZone(""))
		}
	}
	failed := make(chan error)
	for _, family := range []string{"4", "6"} { // a socket of both gets no IPv4 multicast
		tcp, err := net.Listen("tcp"+family, listen)
		if err != nil {
			return err
		}
		udp, err := net.ListenPacket("udp"+family, listen)
		if err != nil {
			return err
		}
		go func() {
			for {
				conn, err := tcp.Accept()
				if err != nil {
					failed <- err
					return
				}
				go func() {
					defer conn.Close()
					word, _ := io.ReadAll(conn)
					say(word, conn.RemoteAddr())
				}()
			}
		}()
		go func() {
			for b := make([]byte, 1500); ; {
				n, from, err := udp.ReadFrom(b)
				if err != nil {
					failed <- err
					return
				}
				say(b[:n], from)
			}
		}()
	}
	fmt.Println("collecting")
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	return <-failed
}

// throwWords reads lines of protocol, address and word, and sends all words at
// once. Whether any arrives is not its business.
func throwWords([]string) error {
	var sending sync.WaitGroup
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) != 3 {
			return fmt.Errorf("%q has not three words", lines.Text())
		}
		a, err := netip.ParseAddr(words[1])
		if err != nil {
			return err
		}
		if a.IsLinkLocalUnicast() && a.Is6() || a.IsLinkLocalMulticast() && a.Is6() {
			a = a.WithZone("eth0")
		}
		sending.Go(func() {
			dialer := net.Dialer{Timeout: fetchTimeout}
			// To 0.0.0.0 Go would dial the loopback address of either family.
			conn, err := dialer.DialContext(context.Background(), words[0]+map[bool]string{true: "4", false: "6"}[a.Is4()], netip.AddrPortFrom(a, collectPort).String())
			if err != nil {
				return
			}
			defer conn.Close()
			conn.Write([]byte(words[2]))
		})
	}
	sending.Wait()
	return nil
}
