package podlink

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
)

// BenchmarkEnsure makes the interface of a pod with one IPv4 address, brings it up as a
// data plane does, and waits for it. What it reports beside the time is the processor
// time of the process, the kernel's part of it included, in milliseconds.
func BenchmarkEnsure(b *testing.B) {
	node := newNetNS(b)
	processors := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	var used time.Duration
	for n := range b.N {
		b.StopTimer()
		s := spec(newNetNS(b))
		s.Addresses, s.Gateways, s.Destinations = s.Addresses[:1], s.Gateways[:1], []netip.Prefix{everything[0]}
		s.ContainerID = fmt.Sprint("c", n)
		s.HostInterface = HostName(s.ContainerID, s.Interface)
		s.MAC = plan.MACOf(address4)
		if err := netns.Do(node, func() error {
			b.StartTimer()
			before := processors()
			index, err := Ensure(s)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}); err != nil {
				return err
			}
			err = Await(s)
			used += processors() - before
			b.StopTimer()
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(used.Seconds()*1000/float64(b.N), "processor-ms/op")
}
