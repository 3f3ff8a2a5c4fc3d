package flannel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weftnet/weft/plan"
)

// The backends that are spoken.
const (
	BackendVXLAN  = "vxlan"
	BackendHostGW = "host-gw"
)

// defaultVXLANPort is what flanneld gets from the kernel, which had VXLAN
// before it had a port of its own.
const (
	defaultVXLANPort = 8472
	defaultVNI       = 1
)

// Settings is what a configuration means, with flannel's defaults filled in.
type Settings struct {
	// V4 and V6 are where each family's subnets come from; the zero value
	// where the family is not used.
	V4, V6 Range
	// Backend is BackendVXLAN or BackendHostGW.
	Backend string
	// VNI and Port are those of the VXLAN overlay.
	VNI  uint32
	Port uint16
	// DirectRouting sends without a tunnel to nodes that are on-link.
	DirectRouting bool
	// MTU of the underlay in bytes, where the configuration gives one; else 0.
	MTU int
	// Ignored says what of the configuration has no effect, for people.
	Ignored []string
}

// Range is what subnets are taken from.
type Range struct {
	Network netip.Prefix
	// Bits is the length of each subnet's prefix. It and Min and Max are zero
	// where subnets are given by somebody else, as on Kubernetes.
	Bits int
	// Min and Max are the first address of the first and of the last subnet
	// that may be used.
	Min, Max netip.Addr
}

// IsZero reports whether the family is not used.
func (r Range) IsZero() bool { return r == Range{} }

// Allows reports whether p is one of the subnets.
func (r Range) Allows(p netip.Prefix) bool {
	if r.IsZero() {
		return !p.IsValid()
	}
	return p.IsValid() && p.Bits() == r.Bits && !p.Addr().Less(r.Min) && !r.Max.Less(p.Addr())
}

// holds reports whether all of p is in the network.
func (r Range) holds(p netip.Prefix) bool {
	return !r.IsZero() && r.Network.Contains(p.Addr()) && p.Bits() >= r.Network.Bits()
}

// Allows reports whether s is a subnet that the configuration could give.
func (c Settings) Allows(s Subnet) bool { return c.V4.Allows(s.V4) && c.V6.Allows(s.V6) }

// leftOut reports whether p is the first subnet of the network, which flannel gives
// to nobody unless it is told to.
func (r Range) leftOut(p netip.Prefix) bool {
	if r.IsZero() || !p.IsValid() || p.Bits() != r.Bits || p.Addr() != r.Network.Addr() {
		return false
	}
	second, ok := next(p)
	return ok && second.Addr() == r.Min
}

// Bears reports whether a node may keep s where its pods live on it, or an
// administrator says so: subnets that the configuration could give, and the first.
func (c Settings) Bears(s Subnet) bool {
	return (c.V4.Allows(s.V4) || c.V4.leftOut(s.V4)) && (c.V6.Allows(s.V6) || c.V6.leftOut(s.V6))
}

// settingsJSON is the value of the configuration's key. Field names match in
// any case, and fields that are not known are left alone, as in flanneld.
type settingsJSON struct {
	EnableIPv4, EnableIPv6                             *bool
	Network, IPv6Network                               string
	SubnetLen, IPv6SubnetLen                           int
	SubnetMin, SubnetMax, IPv6SubnetMin, IPv6SubnetMax string
	Backend                                            json.RawMessage
}

type backendJSON struct {
	Type          string
	VNI           *int64
	Port, MTU     int64
	GBP, Learning bool
	DirectRouting bool
}

// ParseSettings reads a configuration. Errors name the field and the value,
// and say what to do.
func ParseSettings(value []byte) (Settings, error) { return parseSettings(value, true) }

// parseSettings reads a configuration. Where subnets are not taken from it,
// networks of any size do, and what it says of subnets is left alone.
func parseSettings(value []byte, subnets bool) (Settings, error) {
	j := settingsJSON{}
	if err := json.Unmarshal(value, &j); err != nil {
		return Settings{}, jsonError(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`, err)
	}
	var c Settings
	var err error
	v4 := j.EnableIPv4 == nil || *j.EnableIPv4
	v6 := j.EnableIPv6 != nil && *j.EnableIPv6
	if !v4 && !v6 {
		return Settings{}, fmt.Errorf("EnableIPv4 and EnableIPv6 are both false; enable one")
	}
	if v4 {
		f := rangeFields{"", j.Network, j.SubnetLen, j.SubnetMin, j.SubnetMax, 32, 24}
		if c.V4, err = f.parse(subnets); err != nil {
			return Settings{}, err
		}
	}
	if v6 {
		f := rangeFields{"IPv6", j.IPv6Network, j.IPv6SubnetLen, j.IPv6SubnetMin, j.IPv6SubnetMax, 128, 64}
		if c.V6, err = f.parse(subnets); err != nil {
			return Settings{}, err
		}
	} else if j.IPv6Network != "" {
		c.Ignored = append(c.Ignored, fmt.Sprintf("IPv6Network %s has no effect without EnableIPv6: true", j.IPv6Network))
	}
	if err := c.parseBackend(j.Backend); err != nil {
		return Settings{}, err
	}
	return c, nil
}

// jsonError says in flannel's terms what encoding/json says in Go's.
func jsonError(example string, err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return fmt.Errorf("not JSON such as %s: %w", example, err)
	}
	if wrong.Field == "" {
		return fmt.Errorf("a JSON %s instead of an object such as %s", wrong.Value, example)
	}
	return fmt.Errorf("%s: a JSON %s is not of the type it needs, %s", wrong.Field, wrong.Value, wrong.Type)
}

func (c *Settings) parseBackend(value json.RawMessage) error {
	const remedy = `use {"Type":"vxlan"} or {"Type":"host-gw"}`
	if len(value) == 0 || string(value) == "null" {
		return fmt.Errorf("no Backend is given, which means flannel's backend udp, and that is not supported; %s", remedy)
	}
	var j backendJSON
	if err := json.Unmarshal(value, &j); err != nil {
		return fmt.Errorf("%s: %w", "Backend", jsonError(`{"Type":"vxlan"}`, err))
	}
	c.Backend = strings.ToLower(j.Type)
	switch c.Backend {
	case BackendHostGW:
		return nil
	case BackendVXLAN:
	default:
		return fmt.Errorf("Backend.Type: %q is not supported; %s", j.Type, remedy)
	}
	c.VNI, c.Port, c.DirectRouting, c.MTU = defaultVNI, uint16(cmp.Or(j.Port, defaultVXLANPort)), j.DirectRouting, int(j.MTU)
	switch {
	case j.VNI != nil && (*j.VNI < 0 || *j.VNI > plan.MaxVNI):
		return fmt.Errorf("Backend.VNI: %d is not a number from 0 to %d", *j.VNI, plan.MaxVNI)
	case j.Port < 0 || j.Port > 65535:
		return fmt.Errorf("Backend.Port: %d is not a number from 1 to 65535", j.Port)
	case j.MTU != 0 && (j.MTU < minMTU || j.MTU > maxMTU):
		return fmt.Errorf("Backend.MTU: %d is not a number of bytes from %d to %d", j.MTU, minMTU, maxMTU)
	case j.GBP:
		return fmt.Errorf("Backend.GBP: true is not supported; leave it out")
	}
	if j.VNI != nil {
		c.VNI = uint32(*j.VNI)
	}
	if j.Learning {
		c.Ignored = append(c.Ignored, "Backend.Learning has no effect: peers are known from their leases")
	}
	return nil
}

// notForPods are the prefixes that no pod's address can be in: this host,
// loopback and multicast (RFC 6890, RFC 4291).
var notForPods = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("ff00::/8"),
}

// rangeFields are the fields of one family as they are written.
type rangeFields struct {
	family           string // what the fields' names begin with
	network          string
	subnetLen        int
	subnetMin        string
	subnetMax        string
	addressBits      int
	defaultSubnetLen int
}

func (f rangeFields) parse(subnets bool) (Range, error) {
	network, err := netip.ParsePrefix(f.network)
	if err != nil || network.Addr().BitLen() != f.addressBits || network.Addr().Is4In6() {
		example := map[int]string{32: "10.5.0.0/16", 128: "fd00:5::/48"}[f.addressBits]
		return Range{}, fmt.Errorf("%sNetwork: %q is not a prefix such as %s", f.family, f.network, example)
	}
	r := Range{Network: network.Masked(), Bits: f.subnetLen}
	for _, special := range notForPods {
		if r.Network.Overlaps(special) {
			return Range{}, fmt.Errorf("%sNetwork: %s overlaps with %s, which pods cannot use; use one such as 10.5.0.0/16 or fd00:5::/48", f.family, r.Network, special)
		}
	}
	if !subnets {
		return Range{Network: r.Network}, nil
	}
	// A subnet holds at least two bits of hosts, and a network four subnets,
	// of which the first stays unused.
	longest := f.addressBits - 2
	switch {
	case r.Network.Bits() > longest-2:
		return Range{}, fmt.Errorf("%sNetwork: %s is too small; use /%d or shorter", f.family, r.Network, longest-2)
	case f.subnetLen == 0:
		r.Bits = max(f.defaultSubnetLen, r.Network.Bits()+2)
	case f.subnetLen > longest || f.subnetLen < r.Network.Bits()+2:
		return Range{}, fmt.Errorf("%sSubnetLen: %d does not suit %sNetwork %s; use %d to %d",
			f.family, f.subnetLen, f.family, r.Network, r.Network.Bits()+2, longest)
	}

	first, _ := next(netip.PrefixFrom(r.Network.Addr(), r.Bits))
	if r.Min, err = f.bound("SubnetMin", f.subnetMin, first.Addr(), r); err != nil {
		return Range{}, err
	}
	if r.Max, err = f.bound("SubnetMax", f.subnetMax, last(r.Network, r.Bits), r); err != nil {
		return Range{}, err
	}
	if r.Max.Less(r.Min) {
		return Range{}, fmt.Errorf("%sSubnetMax: %s is below %sSubnetMin %s", f.family, r.Max, f.family, r.Min)
	}
	return r, nil
}

func (f rangeFields) bound(name, text string, otherwise netip.Addr, r Range) (netip.Addr, error) {
	if text == "" {
		return otherwise, nil
	}
	a, err := netip.ParseAddr(text)
	if err == nil && a.IsUnspecified() {
		return otherwise, nil
	}
	if err != nil || !r.Network.Contains(a) {
		return netip.Addr{}, fmt.Errorf("%s%s: %q is not an address in %sNetwork %s", f.family, name, text, f.family, r.Network)
	}
	if p := netip.PrefixFrom(a, r.Bits); p != p.Masked() {
		return netip.Addr{}, fmt.Errorf("%s%s: %s is not the start of a /%d; use %s", f.family, name, a, r.Bits, p.Masked().Addr())
	}
	return a, nil
}

// next is the prefix of the same length that follows p; false at the end of
// all addresses.
func next(p netip.Prefix) (netip.Prefix, bool) {
	b := p.Addr().AsSlice()
	for i, carry := (p.Bits()-1)/8, 1<<(7-(p.Bits()-1)%8); i >= 0; i-- {
		sum := int(b[i]) + carry
		b[i], carry = byte(sum), sum>>8
		if carry == 0 {
			a, _ := netip.AddrFromSlice(b)
			return netip.PrefixFrom(a, p.Bits()), true
		}
	}
	return netip.Prefix{}, false
}

// last is the first address of the last prefix of the given length in network.
func last(network netip.Prefix, bits int) netip.Addr {
	b := network.Addr().AsSlice()
	for i := network.Bits(); i < bits; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
