package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

const lettersService = `
apiVersion: v1
kind: Service
metadata: {name: letters, namespace: default}
spec: {type: NodePort, clusterIP: 10.96.7.7, ports: [{port: 7, nodePort: 30007}]}
`

// What an EndpointSlice says of an endpoint.
const (
	isReady  = "ready: true, serving: true, terminating: false"
	isEnding = "ready: false, serving: true, terminating: true"
)

// TestServicesOutliveFaults holds connections by way of a Service, and opens others, while its
// backends drain and die, agents are killed, and the registry and a node are away. What need not
// break does not, and no time is measured: bench does that (-only faults).
func TestServicesOutliveFaults(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 3})
	at := map[byte]netip.Addr{}
	for i, letter := range []byte("abc") {
		name := string(letter)
		at[letter] = c.run(name, c.lab.Nodes()[i], self, "letter", name)[0]
		c.listens(name)
	}
	c.run("client", "node1")
	c.apply(lettersService)
	list := func(conditions map[byte]string) {
		t.Helper()
		c.apply(lettersSlice(at, conditions))
	}
	service, nodePort := netip.MustParseAddrPort("10.96.7.7:7"), netip.MustParseAddrPort("172.30.0.12:30007")
	places := []place{"pod/client", "node/node1", "node/node2"}
	come := func(letters string) {
		t.Helper()
		for _, p := range places {
			c.comesTo(p, service, letters)
		}
		c.comesTo("pod/client", nodePort, letters)
	}

	list(map[byte]string{'a': isReady, 'b': isReady, 'c': isReady})
	come("abc")
	open := map[byte]*conversation{}
	for _, letter := range []byte("abc") {
		open[letter] = c.converseWith("pod/client", service, letter)
	}
	goOn := func(letters string) {
		t.Helper()
		for _, letter := range []byte(letters) {
			for range 3 {
				if got := open[letter].answer(); got != letter {
					t.Fatalf("%c answers over the connection with %c", got, letter)
				}
			}
		}
	}
	// Nothing is to change, so that each connection is answered, the first as the last.
	undisturbed := func(held, served string) {
		t.Helper()
		goOn(held)
		for _, to := range []netip.AddrPort{service, nodePort} {
			for _, got := range c.ask("pod/client", to, 20) {
				if !strings.ContainsRune(served, got) {
					t.Fatalf("%s leads to %c, and not to one of %s", to, got, served)
				}
			}
		}
	}

	// Who drains gets no connections more, and keeps those that he has.
	list(map[byte]string{'a': isReady, 'b': isEnding, 'c': isReady})
	come("ac")
	undisturbed("abc", "ac")

	// Agents die and start anew.
	for _, node := range c.lab.Nodes() {
		if err := c.lab.Kill(node); err != nil {
			t.Fatal(err)
		}
		undisturbed("abc", "ac")
		if err := c.lab.Start(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		undisturbed("abc", "ac")
	}

	// What an agent was not told as it was dead, the next one is.
	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	list(map[byte]string{'a': isReady, 'c': isReady})
	undisturbed("abc", "ac")
	if err := c.lab.Start(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	open['b'].breaks()
	undisturbed("ac", "ac")

	// The registry is away, and then a node is lost of which nobody can know. Who comes to its
	// backend waits.
	if err := c.lab.Kill("controller1"); err != nil {
		t.Fatal(err)
	}
	undisturbed("ac", "ac")
	c.mustExec("outside", "ip", "link", "set", "node3", "down")
	goOn("a")
	if err := c.lab.Start(t.Context(), "controller1"); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() error {
		_, err := registryGet[registry.Object](c, api.Service, registry.Key{Namespace: "default", Name: "letters"})
		return err
	})
	list(map[byte]string{'a': isReady})
	open['c'].breaks()
	come("a")
	undisturbed("a", "a")
	open['a'].end()
}

// lettersSlice is the EndpointSlice of backends with their conditions.
func lettersSlice(at map[byte]netip.Addr, conditions map[byte]string) string {
	var b strings.Builder
	b.WriteString(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: letters, namespace: default, labels: {kubernetes.io/service-name: letters}}
addressType: IPv4
ports: [{name: "", protocol: TCP, port: 7}]
endpoints:
`)
	for _, letter := range []byte("abc") {
		if conditions[letter] != "" {
			fmt.Fprintf(&b, "- {addresses: [%s], conditions: {%s}}\n", at[letter], conditions[letter])
		}
	}
	return b.String()
}

// comesTo waits until many connections in a row come to some backends, to all and no other.
func (c *cluster) comesTo(from place, to netip.AddrPort, letters string) {
	c.Helper()
	c.eventually(func() error {
		out, err := c.exec(from, self, "ask", to.String(), strconv.Itoa(20*len(letters)))
		if err != nil {
			return err
		}
		met := slices.Compact(slices.Sorted(slices.Values([]byte(out))))
		if string(met) != letters {
			return fmt.Errorf("from %s, %s leads to %s, and not to %s", from, to, met, letters)
		}
		return nil
	})
}

// ask opens connections one after the other, and returns who answers.
func (c *cluster) ask(from place, to netip.AddrPort, times int) (letters string) {
	c.Helper()
	return c.mustExec(from, self, "ask", to.String(), strconv.Itoa(times))
}

// converseWith opens connections until one comes to a backend, and holds that.
func (c *cluster) converseWith(from place, to netip.AddrPort, letter byte) *conversation {
	c.Helper()
	for range 1000 {
		x := c.converseAt(from, to)
		if x.answer() == letter {
			return x
		}
		x.end()
	}
	c.Fatalf("no connection to %s comes to %c", to, letter)
	return nil
}

// answer sends a byte, and returns the one that comes back.
func (x *conversation) answer() byte {
	x.t.Helper()
	if _, err := x.in.Write([]byte{'?'}); err != nil {
		x.t.Fatal(err)
	}
	return x.next()
}

// breaks sends until the connection is said to have ended.
func (x *conversation) breaks() {
	x.t.Helper()
	eventually(x.t, func() error {
		x.in.Write([]byte{'?'}) // it fails where the program has ended
		select {
		case err := <-x.finished:
			if err == nil || !strings.Contains(x.errors.String(), "reset") {
				x.t.Fatalf("the connection ended with %v: %s", err, x.errors)
			}
			return nil
		default:
			return errors.New("the connection goes on, or waits")
		}
	})
}

// letter answers each byte of a connection with its own.
func letter(args []string) error {
	return answer(func(conn net.Conn) {
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(conn, b); err != nil {
				return
			}
			if _, err := io.WriteString(conn, args[0]); err != nil {
				return
			}
		}
	})
}

// askLetters opens N connections to ADDRESS:PORT, one after the other, and prints the byte that
// each is answered with.
func askLetters(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for range n {
		if err := askLetter(args[0]); err != nil {
			return err
		}
	}
	return nil
}

func askLetter(to string) error {
	conn, err := net.DialTimeout("tcp", to, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	b := []byte{'?'}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}
