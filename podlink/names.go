package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Belongs returns the name that an interface of the node was made with, whatever it is
// called now: its alias says so. It is empty for what is no host end, and for one that is
// half made.
func Belongs(l netlink.Link) string {
	if l.Type() != "veth" {
		return ""
	}
	stamp, err := ParseStamp(l.Attrs().Alias)
	if err != nil {
		return ""
	}
	return HostName(stamp.ContainerID, stamp.Interface)
}

// Claim is how much besides its alias speaks for it that an interface is what was made with a
// name. Data planes give a group to those that lead to endpoints, which others have no cause
// to give. A name alone says less than age, as anybody may give himself one.
func Claim(l netlink.Link, name string) int {
	switch {
	case l.Attrs().Group == 0:
		return 0
	case l.Attrs().Name != name:
		return 1
	}
	return 2
}

// Owners returns the interfaces that ought to have a name, by that name. right tells it of
// each, or nothing. Where several ought to have one name, it is that of the one with the
// greatest claim, of several the oldest's, and the others are copies.
func Owners(links []netlink.Link, right func(netlink.Link) string, claim func(l netlink.Link, name string) int) (own map[string]netlink.Link, copies []netlink.Link) {
	own = map[string]netlink.Link{}
	for _, l := range links {
		name := right(l)
		if name == "" {
			continue
		}
		old, several := own[name]
		if !several || cmp.Or(cmp.Compare(claim(old, name), claim(l, name)), cmp.Compare(l.Attrs().Index, old.Attrs().Index)) < 0 {
			own[name], l = l, old
		}
		if several {
			copies = append(copies, l)
		}
	}
	return own, copies
}

// list returns the interfaces of the node.
func list(h *netlink.Handle) ([]netlink.Link, error) {
	for {
		links, err := h.LinkList()
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted):
			continue
		case err != nil:
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		return links, nil
	}
}

// find returns the host end of a name by what its alias says, as Owners does. One of the
// name whose alias says nothing is half made, or another's.
func find(h *netlink.Handle, name string) (netlink.Link, error) {
	links, err := list(h)
	if err != nil {
		return nil, err
	}
	own, _ := Owners(links, Belongs, Claim)
	if l, ok := own[name]; ok {
		return l, nil
	}
	for _, l := range links {
		switch other := Belongs(l); {
		case l.Attrs().Name != name:
		case other != "":
			return nil, fmt.Errorf("find %s: what has the name is %s: %w", name, other, syscall.ENODEV)
		default:
			return l, nil
		}
	}
	return nil, fmt.Errorf("find %s: %w", name, syscall.ENODEV)
}

// Rename gives an interface another name, also in what was read of it. A kernel before 6.2
// gives none to one that is up: there it is down then.
func Rename(h *netlink.Handle, l netlink.Link, name string) error {
	err := h.LinkSetName(l, name)
	if errors.Is(err, unix.EBUSY) {
		if err = h.LinkSetDown(l); err == nil {
			err = h.LinkSetName(l, name)
		}
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", l.Attrs().Name, name, err)
	}
	l.Attrs().Name = name
	return nil
}
