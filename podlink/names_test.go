package podlink

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// call gives an interface of the node another name.
func call(name, other string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetName(link, other)
}

// TestWhoseAnInterfaceIsItsAliasSays has somebody change the names of two pods' interfaces,
// and give another's interface one of them, or all that says whose it is. Each is found as its own pod's, and what is
// removed is that and nothing else.
func TestWhoseAnInterfaceIsItsAliasSays(t *testing.T) {
	one, two := HostName("c1", "eth0"), HostName("c2", "eth0")
	veth := func(name string) error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "other"})
	}
	copied := func(name string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		alias := link.Attrs().Alias
		if err := errors.Join(call(name, "stray"), veth(name)); err != nil {
			return err
		}
		if link, err = netlink.LinkByName(name); err != nil {
			return err
		}
		return netlink.LinkSetAlias(link, alias)
	}
	for what, c := range map[string]struct {
		do func() error
		// left is what of the interfaces is left once the first pod's is removed.
		left []string
	}{
		"each has its own":                 {func() error { return nil }, []string{two}},
		"they have each other's":           {func() error { return errors.Join(call(one, "tmp"), call(two, one), call("tmp", two)) }, []string{one}},
		"one has a strange one":            {func() error { return call(one, "stray") }, []string{two}},
		"one has the other's":              {func() error { return errors.Join(call(two, "stray"), call(one, two)) }, []string{"stray"}},
		"another's has its name":           {func() error { return errors.Join(call(one, "stray"), veth(one)) }, []string{one, two}},
		"another's has its name and alias": {func() error { return copied(one) }, []string{one, two}},
		"another's has the third":          {func() error { return errors.Join(call(two, "stray"), call(one, two), veth(one)) }, []string{one, "stray"}},
	} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, and its index is known: %t", what, known), func(t *testing.T) {
				node := newNetNS(t)
				first, second := spec(newNetNS(t)), spec(newNetNS(t))
				second.ContainerID, second.HostInterface = "c2", two
				in(t, node, func() error {
					if err := errors.Join(ensure(first), ensure(second)); err != nil {
						return err
					}
					indexes := map[string]int{}
					for _, name := range []string{one, two} {
						link, err := netlink.LinkByName(name)
						if err != nil {
							return err
						}
						indexes[name] = link.Attrs().Index
					}
					if err := c.do(); err != nil {
						return err
					}
					ends, err := List()
					if err != nil || len(ends) != 2 || ends[0].Index != indexes[ends[0].Name] || ends[1].Index != indexes[ends[1].Name] {
						return fmt.Errorf("the host ends are %v, %w; they were %v", ends, err, indexes)
					}
					if link, err := netlink.LinkByName(one); err != nil || link.Attrs().Index != indexes[one] {
						if err := Check(first); err == nil || !strings.Contains(err.Error(), "and not "+one) {
							return fmt.Errorf("the check says %v", err)
						}
					}
					index := 0
					if known {
						index = indexes[one]
					}
					for range 2 {
						if err := Remove(one, index); err != nil {
							return err
						}
						if _, err := netlink.LinkByIndex(indexes[one]); !isGone(err) {
							return fmt.Errorf("the first pod's interface is not gone: %v", err)
						}
						for _, name := range c.left {
							if _, err := netlink.LinkByName(name); err != nil {
								return fmt.Errorf("%s is gone: %w", name, err)
							}
						}
						if there, err := Exists(two); err != nil || !there {
							return fmt.Errorf("the second pod's is there: %t, %w", there, err)
						}
						// Another's that says nothing cannot be told from one half made, once the pod's is gone.
						if strings.HasPrefix(what, "another's") {
							break
						}
					}
					return nil
				})
			})
		}
	}
}

// TestAnOlderCopyIsNotThePods has somebody give an older interface all that says that it is a
// pod's. The pod's own is that to which a data plane gave a group, whatever it is called, and it
// is what is removed.
func TestAnOlderCopyIsNotThePods(t *testing.T) {
	name := HostName("c1", "eth0")
	for _, called := range []string{name, "stray"} {
		in(t, newNetNS(t), func() error {
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "older"}, PeerName: "other"}); err != nil {
				return err
			}
			index, err := Ensure(spec(newNetNS(t)))
			if err != nil {
				return err
			}
			older, err := netlink.LinkByName("older")
			if err != nil {
				return err
			}
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := errors.Join(netlink.LinkSetGroup(link, 7), call(name, called), netlink.LinkSetAlias(older, link.Attrs().Alias)); err != nil {
				return err
			}
			if ends, err := List(); err != nil || len(ends) != 1 || ends[0].Index != index {
				return fmt.Errorf("the host ends are %v, %w; the pod's is %d", ends, err, index)
			}
			if err := Remove(name, 0); err != nil {
				return err
			}
			if _, err := netlink.LinkByIndex(index); !isGone(err) {
				return fmt.Errorf("the pod's interface is not gone: %v", err)
			}
			_, err = netlink.LinkByName("older")
			return err
		})
	}
}

// TestWhatIsMadeAgainGetsItsNameBack has somebody rename the host ends of two pods before
// their requests are repeated. Each is found, and made no second time. Where another's has
// the name, that is said.
func TestWhatIsMadeAgainGetsItsNameBack(t *testing.T) {
	one, two := HostName("c1", "eth0"), HostName("c2", "eth0")
	node := newNetNS(t)
	first, second := spec(newNetNS(t)), spec(newNetNS(t))
	second.ContainerID, second.HostInterface = "c2", two
	in(t, node, func() error {
		index, err := Ensure(first)
		if err := errors.Join(err, ensure(second)); err != nil {
			return err
		}
		again := func() error {
			is, err := Ensure(first)
			if err != nil {
				return err
			}
			link, err := netlink.LinkByName(one)
			if is != index || err != nil || link.Attrs().Index != index {
				return fmt.Errorf("interface %d was made, and %s is %v, %w; it was %d", is, one, link, err, index)
			}
			return nil
		}
		if err := errors.Join(call(one, "stray"), again()); err != nil {
			return err
		}
		for _, c := range []struct {
			take func() error
			said string
		}{
			{func() error { return call(two, one) }, "and " + two + " has its name: try again once they have their own"},
			{func() error {
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: one}, PeerName: "other"})
			}, "as another's interface has its name: delete that (ip link del " + one + ")"},
		} {
			if err := errors.Join(call(one, "stray"), c.take()); err != nil {
				return err
			}
			if err := again(); err == nil || !strings.Contains(err.Error(), one+" is called stray now, "+c.said) {
				return fmt.Errorf("the name is taken, and it is said %v", err)
			}
			if err := errors.Join(call(one, "tmp"), again(), ensure(second)); err != nil {
				return err
			}
		}
		return nil
	})
}
