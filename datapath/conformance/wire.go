package conformance

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// wire checks what others see of what a node sends: the first identifier of the
// network and the tag of the endpoint that sent it, also where nobody can tell by the
// source who that was; and the first alone for all else.
func (s *suite) wire(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, last uint32
		ipv4        bool
	}{
		{"all identifiers", 0, plan.MaxVNI, true},
		{"from a power of two", 1 << 12, 1<<12 + 100, true},
		{"from another number", 4095, 4095 + 100, true},
		{"over IPv6", 0, 100, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := s.newTagBench(t, c.first, c.last, c.ipv4)
			seen := b.listenTo(t, "node2")
			port := b.plans["node2"].Local.Tunnels[0].Port
			senders := map[string]plan.Tag{"five": 5, "six": 6, "hidden": 5, "beyond": 1000}
			for _, family := range []int{0, 1} {
				for name, tag := range senders {
					from := b.nodes["node2"].pods[name]
					want, _ := b.plans["node2"].Encode("vxlan", plan.DefaultNetwork, tag)
					b.sendsAs(t, seen, name, from.host, from.addresses[family], b.node.pods["untagged"].addresses[family], port, want)
				}
				b.sendsAs(t, seen, "the node itself", b.nodes["node2"].host, netip.Addr{}, b.node.pods["untagged"].addresses[family], port, c.first)
			}
		})
	}
}

// sendsAs checks that a datagram gets to its receiver, and which identifier it has on
// its way.
func (b *tagBench) sendsAs(t *testing.T, seen *wiretap, name string, from *host, source, to netip.Addr, port uint16, want uint32) {
	t.Helper()
	b.listen(b.node.pods["untagged"].host, service{plan.UDP, sourcePort})
	word, arrived := b.expect()
	c, err := from.dial("udp", source, netip.AddrPortFrom(to, sourcePort), patience)
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte(word))
	must(t, err)
	select {
	case <-arrived:
	case <-time.After(patience):
		t.Errorf("what %s sends to %s does not arrive", name, to)
	}
	if vni, ok := seen.of(word, port); !ok || vni != want {
		t.Errorf("what %s sends to %s has network identifier %d on the wire (seen: %t); expected %d", name, to, vni, ok, want)
	}
}

// wiretap is what passes an interface.
type wiretap struct {
	mu     sync.Mutex
	frames [][]byte
}

// listenTo notes what a node sends and gets.
func (l *topology) listenTo(t *testing.T, node string) *wiretap {
	t.Helper()
	return l.tap(t, l.out, node)
}

// tap notes what passes an interface of a host.
func (l *topology) tap(t *testing.T, h *host, name string) *wiretap {
	t.Helper()
	w := &wiretap{}
	must(t, h.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		wait := unix.Timeval{Usec: 50000}
		err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: link.Attrs().Index}))
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		done := make(chan struct{})
		l.keep(closer(done), func() {
			defer unix.Close(fd)
			for b := make([]byte, 65536); ; {
				if n, _, err := unix.Recvfrom(fd, b, 0); err == nil {
					w.mu.Lock()
					w.frames = append(w.frames, slices.Clone(b[:n]))
					w.mu.Unlock()
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
		return nil
	}))
	return w
}

// of returns the network identifier of the tunnel packet, sent to a port, that carries
// a word.
func (w *wiretap) of(word string, port uint16) (vni uint32, ok bool) {
	const ethernet, udpHeader, vxlanHeader = 14, 8, 8
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		frames := w.frames
		w.mu.Unlock()
		for _, f := range frames {
			if !strings.Contains(string(f), word) || len(f) < ethernet+1 {
				continue
			}
			outer := f[ethernet:]
			header := 20
			if outer[0]>>4 == 6 {
				header = 40
			}
			if len(outer) < header+udpHeader+vxlanHeader || binary.BigEndian.Uint16(outer[header+2:]) != port {
				continue
			}
			return binary.BigEndian.Uint32(outer[header+udpHeader+4:]) >> 8, true
		}
	}
	return 0, false
}

// heard reports whether a TCP segment from one address to another has passed.
func (w *wiretap) heard(from, to netip.AddrPort) bool {
	const ethernet = 14
	header := numbered(from, to, 0, 0, 0, "")
	ports := len(header) - 20
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.frames, func(f []byte) bool {
		addresses := 2 * len(from.Addr().AsSlice())
		return len(f) >= ethernet+ports+4 && f[ethernet]>>4 == header[0]>>4 && string(f[ethernet+ports-addresses:ethernet+ports+4]) == string(header[ports-addresses:ports+4])
	})
}

// has reports whether a packet with a word has passed.
func (w *wiretap) has(word string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.frames, func(f []byte) bool { return strings.Contains(string(f), word) })
}
