package linux

import (
	"context"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// What the node's own programs send and nobody gets is counted and told of like what others send; no interface is where
// it came from.
func TestWhatTheNodeItselfSendsIsTold(t *testing.T) {
	on := newBench(t)
	on.mustApply(mustParse(t, `node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
route default 0.0.0.0/0 gateway
service default 172.30.0.9 udp 80 else drop
`))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan datapath.Drop, 100)
	following, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		close(following)
		ended <- on.Follow(ctx, func(d datapath.Drop) { told <- d })
	}()
	<-following
	send := func() {
		on.do(func() error {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			_ = unix.Sendto(s, []byte("x"), 0, &unix.SockaddrInet4{Addr: [4]byte{172, 30, 0, 9}, Port: 80}) // refused is what it is to be
			return nil
		})
	}
	var got datapath.Drop
	for n := 0; got.Reason == "" && n < 100_000; n++ {
		send() // until somebody follows
		select {
		case got = <-told:
		case err := <-ended:
			t.Fatalf("nobody follows: %v", err)
		default:
		}
	}
	if got.Reason != datapath.NoBackend || got.Interface != "" || got.Destination != netip.MustParseAddr("172.30.0.9") || got.Protocol != plan.UDP {
		t.Errorf("it is told of as %+v", got)
	}
	dropped, err := on.Dropped()
	if n := dropped[datapath.Dropped{Reason: datapath.NoBackend}]; n == 0 || err != nil {
		t.Errorf("%v are counted, %v", dropped, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
