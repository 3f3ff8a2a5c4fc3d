package conformance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weftnet/weft/plan"
)

// beliefs checks what becomes of connections when tags are sent and believed and then
// not: those go on that either plan allows, those end that only a tag allowed, and
// nothing passes meanwhile that neither plan allows.
func (s *suite) beliefs(t *testing.T) {
	b := s.newTagBench(t, 0, plan.MaxVNI, true)
	b.edit(t, "node1", "verdict server ingress from 5 any allow\n", "verdict server ingress from 5 any allow\nverdict server ingress from 0 tcp 8080 allow\n")
	var l net.Listener
	must(t, b.server.Do(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l, err = config.Listen(t.Context(), "tcp4", ":0")
		return err
	}))
	defer l.Close()
	either := b.connect(t, b.listener(t, ":8080"), "five")
	either.alive(t, "five, which either plan allows,")
	tagged := b.connect(t, l, "five")
	tagged.alive(t, "five, which its tag allows,")
	stop := b.pester(t, "six")

	const believed, not = "carries-tags", ""
	b.edit(t, "node1", "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03 "+believed, "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03"+not)
	tagged.ends(t, "five, whose tag is not believed any more,")
	either.alive(t, "five, when its tag is not believed,")
	b.edit(t, "node1", "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03", "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03 "+believed)
	either.alive(t, "five, when its tag is believed again,")
	tagged = b.connect(t, l, "five")
	for range 2 {
		b.edit(t, "node2", "mac 0a:58:ac:1e:00:03 "+believed, "mac 0a:58:ac:1e:00:03")
		tagged.alive(t, "five, when its node sends no tags any more,")
		b.edit(t, "node2", "mac 0a:58:ac:1e:00:03", "mac 0a:58:ac:1e:00:03 "+believed)
		tagged.alive(t, "five, when its node sends tags again,")
		either.alive(t, "five, when its node sends tags again,")
	}
	b.edit(t, "node1", "verdict server ingress from 0 tcp 8080 allow\n", "")
	either.alive(t, "five, when what has no tag is forbidden,")
	b.edit(t, "node1", "verdict server ingress from 5 any allow\n", "verdict server ingress from 6 tcp 9 allow\n")
	tagged.ends(t, "five, whose tag is forbidden,")
	either.ends(t, "five, whose tag is forbidden,")
	stop()
}

// before checks what becomes of datagrams that nobody answers, and that were sent before
// there were tags: they count as having the tag that they have now.
func (s *suite) before(t *testing.T) {
	b := s.newTagBench(t, 0, 0, true)
	b.edit(t, "node1", "verdict server ingress from 5 any allow\n", "verdict server ingress from 5 any allow\nverdict server ingress from 0 any allow\n")
	arrived := map[string]*atomic.Int64{}
	for i, from := range []string{"five", "six"} {
		count := &atomic.Int64{}
		arrived[from] = count
		var silent net.PacketConn
		must(t, b.server.Do(func() (err error) {
			silent, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", sourcePort+1+i))
			return err
		}))
		c, err := b.nodes["node2"].pods[from].dial("udp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[0], uint16(sourcePort+1+i)), patience)
		must(t, err)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(pause):
					_, _ = c.Write([]byte("x")) // it may be told that nobody takes it
				}
			}
		}()
		go func() {
			for data := make([]byte, 10); ; count.Add(1) {
				if _, _, err := silent.ReadFrom(data); err != nil {
					return
				}
			}
		}()
		t.Cleanup(func() {
			close(stop)
			<-stopped
			c.Close()
			silent.Close()
		})
	}
	arrives := func(from string) bool {
		before := arrived[from].Load()
		for deadline := time.Now().Add(patience); arrived[from].Load() == before; time.Sleep(pause) {
			if time.Now().After(deadline) {
				return false
			}
		}
		return true
	}
	for _, from := range []string{"five", "six"} {
		if !arrives(from) {
			t.Fatalf("nothing arrives from %s, when there are no tags", from)
		}
	}
	const none, some = "in vxlan vni 0\n", "in vxlan vni 0-1000\n"
	b.edit(t, "node2", none, some)
	b.edit(t, "node1", none, some)
	// What has no tag may do so still.
	time.Sleep(afterlife)
	if !arrives("five") {
		t.Error("nothing arrives from five, which has the tag that is allowed")
	}
	was := arrived["six"].Load()
	time.Sleep(disappointment)
	if n := arrived["six"].Load() - was; n > 0 {
		t.Errorf("%d datagrams arrived from six, which has another tag", n)
	}
}

// retagged checks that an endpoint's tag changes with its policies: what five sends its
// own policy forbids while it wears the tag that the server takes, and the server's while
// it wears another.
func (s *suite) retagged(t *testing.T) {
	for name, pool := range map[string]string{"alone": "", "with all else": "pool default 10.7.1.0/24 gateway 10.7.1.1\n"} {
		t.Run(name, func(t *testing.T) {
			b := s.newTagBench(t, 0, plan.MaxVNI, true)
			const five, policed = "mac 0a:58:0a:01:02:02 tag 5\n", "mac 0a:58:0a:01:02:02 tag 5 egress-policy shut\n"
			text := strings.Replace(b.plans["node2"].String(), five, policed, 1)
			shut, err := plan.Parse(text + "verdict shut egress otherwise deny\n")
			must(t, err)
			open, err := plan.Parse(strings.Replace(text, policed, strings.Replace(policed, "tag 5", "tag 6", 1), 1) + pool + "verdict shut egress otherwise allow\n")
			must(t, err)
			n := b.nodes["node2"]
			for range flips {
				b.apply(n, shut)
				// On the way back, what is between two chains in that moment may take the
				// policy of one plan and the tag of the other.
				stop := b.pester(t, "five")
				b.apply(n, open)
				stop()
			}
			b.apply(n, shut)
			b.plans["node2"] = shut
			// With the tag of one and the policy of the other it would arrive.
			b.edit(t, "node2", "verdict shut egress otherwise deny\n", "verdict shut egress otherwise allow\n")
			word, arrived := b.expect()
			c, err := n.pods["five"].dial("udp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[0], sourcePort), patience)
			must(t, err)
			_, err = c.Write([]byte(word))
			must(t, errors.Join(err, c.Close()))
			select {
			case <-arrived:
			case <-time.After(patience):
				t.Error("what neither plan lets pass would not be noticed")
			}
		})
	}
}
