package linux

import (
	"errors"
	"io/fs"

	"github.com/weftnet/weft/internal/sysctl"
)

// addrGenModeNone keeps the kernel from making link-local addresses
// (IN6_ADDR_GEN_MODE_NONE).
const addrGenModeNone = "1"

// set makes a setting have a value, and writes only if it has another.
func (k *kernel) set(name, value string) error {
	old, err := sysctl.Get(name)
	if err != nil || old == value {
		return err
	}
	if err := sysctl.Set(name, value); err != nil {
		return err
	}
	k.record("set %s to %s, it was %s", name, value, old)
	return nil
}

// ipv6Enabled reports whether the kernel speaks IPv6 in this namespace.
func ipv6Enabled() bool {
	v, err := sysctl.Get("ipv6/conf/all/disable_ipv6")
	return err == nil && v == "0"
}

// sctpTracked reports whether the kernel tracks SCTP connections by port.
func sctpTracked() bool {
	_, err := sysctl.Get("netfilter/nf_conntrack_sctp_timeout_established")
	return err == nil
}

// noneTracked reports whether the kernel tracks no connection at all.
func noneTracked() bool {
	v, err := sysctl.Get("netfilter/nf_conntrack_count")
	return err == nil && v == "0"
}

func (k *kernel) ownDeviceSettings(name string) error {
	if err := k.set("ipv4/conf/"+name+"/rp_filter", "0"); err != nil {
		return err
	}
	err := k.set("ipv6/conf/"+name+"/addr_gen_mode", addrGenModeNone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// forwarding makes the node a router for the families.
func (k *kernel) forwarding(ipv4, ipv6 bool) error {
	if ipv4 {
		if err := k.set("ipv4/ip_forward", "1"); err != nil {
			return err
		}
	}
	if ipv6 {
		return k.set("ipv6/conf/all/forwarding", "1")
	}
	return nil
}

// endpointForwarding makes the node a router for what comes from an interface,
// which it is unless someone turned that off for new interfaces.
func (k *kernel) endpointForwarding(name string, ipv4, ipv6 bool) error {
	var errs []error
	if ipv4 {
		errs = append(errs, k.set("ipv4/conf/"+name+"/forwarding", "1"))
	}
	if ipv6 {
		errs = append(errs, k.set("ipv6/conf/"+name+"/forwarding", "1"))
	}
	return unlessGone(errs)
}

// endpointSources says who checks the IPv4 sources of what comes from an
// interface. The kernel does by default, with a lookup in all routing tables
// for each packet where there are routing rules. Where the packet filter has
// let nothing through but the endpoint's own addresses, that is turned off:
// no reverse path filter, and no search for the node's own addresses.
func (k *kernel) endpointSources(name string, filtered bool) error {
	if !filtered {
		return unlessGone([]error{k.set("ipv4/conf/"+name+"/accept_local", "0")})
	}
	return unlessGone([]error{k.set("ipv4/conf/"+name+"/rp_filter", "0"), k.set("ipv4/conf/"+name+"/accept_local", "1")})
}

// unlessGone joins the errors of settings of an interface that did not vanish.
func unlessGone(errs []error) error {
	for i, err := range errs {
		if errors.Is(err, fs.ErrNotExist) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// strictFilter says why the kernel will drop packets that took a tunnel there
// and another way back, if it will.
func strictFilter() string {
	if v, err := sysctl.Get("ipv4/conf/all/rp_filter"); err == nil && v == "1" {
		return "net.ipv4.conf.all.rp_filter is 1: packets between pods and other nodes' addresses may be dropped; set it to 0 or 2"
	}
	return ""
}
