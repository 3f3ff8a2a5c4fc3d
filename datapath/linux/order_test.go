package linux

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
)

// forgeTunnelPacket sends a tunnel packet to the node's own VTEP, with VNI 1, that no
// peer sent.
func forgeTunnelPacket(t testing.TB, port int) {
	t.Helper()
	mac := []byte{0x0a, 0x58, 0xac, 0x1e, 0x00, 0x02}
	packet := append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, mac...)
	packet = append(packet, 0x0a, 0x58, 0xac, 0x1e, 0x00, 0x03, 0x08, 0x00)
	packet = append(packet, make([]byte, 60)...)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr("172.30.0.2").As4()}); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatal(err)
	}
}

// hear has f called each time before a table is read, and returns what f does.
func hear(t *testing.T, f func(table string) error) {
	t.Helper()
	was := reading
	reading = func(name string) (nft.Content, error) {
		if err := f(name); err != nil {
			return nft.Content{}, err
		}
		return was(name)
	}
	t.Cleanup(func() { reading = was })
}

// TestGuardedFromTheStart has somebody send tunnel packets while a tunnel's device
// comes, also where the plan is not applied to its end, and where another device takes
// the place of one. None comes out of the device.
func TestGuardedFromTheStart(t *testing.T) {
	b := newBench(t)
	b.do(func() error { return netlink.LinkSetUp(mustLink(t, "lo")) })
	port, failure := 8472, errors.New("not now")
	hear(t, func(table string) error {
		forgeTunnelPacket(t, port)
		return failure
	})
	received := func() (packets uint64, up bool) {
		b.do(func() error {
			forgeTunnelPacket(t, port)
			a := mustLink(t, vxlanDevice).Attrs()
			packets, up = a.Statistics.RxPackets, a.Flags&net.FlagUp != 0
			return nil
		})
		return packets, up
	}
	p := mustParse(t, tunnelPlan)
	if err := b.Apply(t.Context(), p); !errors.Is(err, failure) {
		t.Fatalf("the error is %v", err)
	}
	if packets, up := received(); up || packets > 0 {
		t.Errorf("nothing guards the tunnel's device, which is up: %t; it got %d packets", up, packets)
	}
	failure = nil
	b.mustApply(p)
	if packets, up := received(); !up || packets > 0 {
		t.Errorf("the tunnel's device is up: %t; it got %d packets that no peer sent", up, packets)
	}
	b.nothingToRepair()
	port = 8473
	b.mustApply(mustParse(t, strings.Replace(tunnelPlan, "port 8472", "port 8473", 1)))
	if packets, up := received(); !up || packets > 0 {
		t.Errorf("the tunnel's next device is up: %t; it got %d packets that no peer sent", up, packets)
	}
	b.nothingToRepair()
	// Others take it down. It is not up again without its guard.
	b.do(func() error {
		return errors.Join(netlink.LinkSetDown(mustLink(t, vxlanDevice)), nft.Delete(stamps.Default.Table))
	})
	if _, err := b.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if packets, up := received(); !up || packets > 0 {
		t.Errorf("after a repair the tunnel's device is up: %t; it got %d packets that no peer sent", up, packets)
	}
	b.nothingToRepair()
	// The packets are such that they would come out of it.
	b.do(func() error { return nft.Delete(stamps.Default.Table) })
	received()
	if packets, _ := received(); packets == 0 {
		t.Error("without a guard, nothing comes out of the tunnel's device")
	}
}

// TestLeavingEndpointsArePoliced has endpoints leave while somebody holds the policy
// table: their interfaces are down before the policies go under which they are.
func TestLeavingEndpointsArePoliced(t *testing.T) {
	for name, whole := range map[string]bool{"what changed": false, "all": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.mustApply(mustParse(t, policedPlan))
			p := mustParse(t, withoutEndpoint)
			if whole {
				b.current, b.previous = nil, nil // as a new instance
			}
			b.policyTable.Lock()
			done := make(chan error)
			go func() { done <- b.Apply(t.Context(), p) }()
			up := true
			for deadline := time.Now().Add(10 * time.Second); up && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				b.do(func() error {
					up = mustLink(t, "weftaaa").Attrs().Flags&net.FlagUp != 0
					return nil
				})
			}
			b.policyTable.Unlock()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if up {
				t.Error("the policies of an endpoint that leaves are about to go, and its interface is up")
			}
			b.nothingToRepair()
		})
	}
}

// TestTakenOverEndpointsArePoliced has a data plane take over with a plan without an
// endpoint of the other's: its interface is down when the other's policies are gone.
func TestTakenOverEndpointsArePoliced(t *testing.T) {
	b := newBench(t)
	p := mustParse(t, policedPlan)
	b.mustApply(p)
	d, err := NewAt(b.path, Config{Stamps: OtherStamps})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	next := mustParse(t, withoutEndpoint)
	if err := d.Prepare(t.Context(), next, b.DataPlane); err != nil {
		t.Fatal(err)
	}
	looked := false
	hear(t, func(table string) error {
		if table != OtherStamps.Table {
			return nil
		}
		looked = true
		if policies, err := nft.Read(stamps.Default.PolicyTable); err != nil || policies.Exists() {
			t.Errorf("the other's policies are there: %t, %v", policies.Exists(), err)
		}
		if mustLink(t, "weftaaa").Attrs().Flags&net.FlagUp != 0 {
			t.Error("an endpoint that leaves has no policies any more, and its interface is up")
		}
		return nil
	})
	if err := d.Apply(t.Context(), next); err != nil || !looked {
		t.Fatalf("%v; looked: %t", err, looked)
	}
}

// withoutEndpoint is policedPlan without its endpoint.
var withoutEndpoint = strings.NewReplacer("endpoint weftaaa network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 ingress-policy web anti-spoof\n", "",
	"route default 10.1.1.2/32 endpoint weftaaa\n", "").Replace(policedPlan)
