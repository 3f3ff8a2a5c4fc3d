package podlink

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ends are both ends of an interface that is there.
type ends struct {
	// ns is the pod's network namespace, and host speaks with the node's.
	ns   *os.File
	host *netlink.Handle
	// link is the node's end, and peer the pod's.
	link, peer netlink.Link
}

// open finds both ends of the interface that s describes. They must be closed.
func (s Spec) open() (e *ends, err error) {
	e = new(ends)
	defer func() {
		if err != nil {
			e.close()
			e = nil
		}
	}()
	if s.NetNS == "" {
		return e, fmt.Errorf("it is not known in which network namespace the other end of %s is", s.HostInterface)
	}
	if e.ns, err = os.Open(s.NetNS); err != nil {
		return e, fmt.Errorf("open the pod's network namespace: %w", err)
	}
	if e.host, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return e, fmt.Errorf("open netlink: %w", err)
	}
	e.link, err = find(e.host, s.HostInterface)
	if isGone(err) {
		return e, fmt.Errorf("the node has no interface %s: %w", s.HostInterface, err)
	} else if err != nil {
		return e, err
	}
	if e.peer, err = s.peer(e.host, e.link, e.ns); err == nil && e.peer == nil {
		err = fmt.Errorf("the other end of %s is not in %s", s.HostInterface, s.NetNS)
	}
	return e, err
}

func (e *ends) close() {
	if e.ns != nil {
		e.ns.Close()
	}
	if e.host != nil {
		e.host.Close()
	}
}
