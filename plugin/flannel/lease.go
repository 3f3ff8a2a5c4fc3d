package flannel

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// Subnet is what a lease is for: a prefix of each family that the network
// has. The zero Prefix stands for a family that it has not.
type Subnet struct{ V4, V6 netip.Prefix }

// noV4 is what flannel writes for the IPv4 part of a lease without one.
const noV4 = "0.0.0.0-0"

// ParseSubnet reads the name of a lease: "10.5.1.0-24", or with IPv6
// "10.5.1.0-24&fd00:5:1::-64".
func ParseSubnet(name string) (Subnet, error) {
	var s Subnet
	v4, v6, dual := strings.Cut(name, "&")
	ok := true
	if v4 != noV4 {
		s.V4, ok = parsePart(v4)
	}
	if ok && dual {
		s.V6, ok = parsePart(v6)
	}
	// What does not come out as it went in would be a second name for the
	// same subnet.
	if !ok || s.String() != name || s.IsZero() {
		return Subnet{}, fmt.Errorf("%q does not name a subnet; the form is 10.5.1.0-24 or 10.5.1.0-24&fd00:5:1::-64", name)
	}
	return s, nil
}

func parsePart(s string) (netip.Prefix, bool) {
	addr, bits, _ := strings.Cut(s, "-")
	a, err := netip.ParseAddr(addr)
	n, numErr := strconv.Atoi(bits)
	p := netip.PrefixFrom(a, n)
	return p, err == nil && numErr == nil && suitsNode(p)
}

// suitsNode reports whether the prefix can be a node's subnet.
func suitsNode(p netip.Prefix) bool {
	return p.IsValid() && p.Bits() > 0 && p == p.Masked() && ordinary(p.Addr())
}

// ordinary reports whether a machine that others reach can have the address.
func ordinary(a netip.Addr) bool {
	return a.Zone() == "" && !a.Is4In6() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// String is the name of the subnet's lease.
func (s Subnet) String() string {
	name := noV4
	if s.V4.IsValid() && s.V4.Addr().Is4() {
		name = fmt.Sprintf("%s-%d", s.V4.Addr(), s.V4.Bits())
	}
	if s.V6.IsValid() && s.V6.Addr().Is6() {
		name += fmt.Sprintf("&%s-%d", s.V6.Addr(), s.V6.Bits())
	}
	return name
}

// IsZero reports whether there is no subnet at all.
func (s Subnet) IsZero() bool { return s == Subnet{} }

// Prefixes returns those that there are, IPv4 first.
func (s Subnet) Prefixes() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []netip.Prefix{s.V4, s.V6} {
		if p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// contains reports whether an address is in one of the prefixes.
func (s Subnet) contains(a netip.Addr) bool { return s.V4.Contains(a) || s.V6.Contains(a) }

// Overlaps reports whether an address can be in both.
func (s Subnet) Overlaps(o Subnet) bool {
	return s.V4.IsValid() && o.V4.IsValid() && s.V4.Overlaps(o.V4) ||
		s.V6.IsValid() && o.V6.IsValid() && s.V6.Overlaps(o.V6)
}

// Attributes is what a lease says of the node that holds it.
type Attributes struct {
	// PublicIP and PublicIPv6 are the node's addresses in the underlay.
	PublicIP, PublicIPv6 netip.Addr
	// BackendType is how the node is reached, "" in a reservation that has
	// not been taken up yet.
	BackendType string
	// Tunnel and TunnelV6 are the node's ends of VXLAN tunnels over each
	// family, nil where it has none.
	Tunnel, TunnelV6 *TunnelEnd
	// Weft is what a Weft node that holds the lease adds; nil in leases of
	// flanneld's, which drops it.
	Weft *Stamp
}

// Stamp is what a Weft node writes into its lease beyond what flanneld does.
type Stamp struct {
	// Node is the node's name: whatever address the lease names, it is this
	// node's.
	Node string
	// Config is the configuration when the lease was written. The node goes
	// by it when the configuration is gone or wrong.
	Config json.RawMessage
}

// TunnelEnd is one end of flannel's VXLAN overlay.
type TunnelEnd struct {
	VNI uint32
	MAC plan.MAC
}

// attributes returns what a node says of itself.
func (s Settings) attributes(node plugin.Node) (Attributes, error) {
	a := Attributes{BackendType: s.Backend}
	for _, f := range []struct {
		r    Range
		addr *netip.Addr
		end  **TunnelEnd
	}{
		{s.V4, &a.PublicIP, &a.Tunnel},
		{s.V6, &a.PublicIPv6, &a.TunnelV6},
	} {
		if f.r.IsZero() {
			continue
		}
		*f.addr = firstOf(node.Addresses, f.r.Network.Addr().Is6())
		if !f.addr.IsValid() {
			// flanneld ends when it meets a lease without it.
			return Attributes{}, fmt.Errorf("node %s has no address of the family of network %s; give it one, or disable that family", node.Name, f.r.Network)
		}
		if s.Backend == BackendVXLAN {
			*f.end = &TunnelEnd{VNI: s.VNI, MAC: plan.MACOf(*f.addr)}
		}
	}
	return a, nil
}

// leaseJSON is the value of a lease's key. Field names match in any case.
type leaseJSON struct {
	PublicIP      *string
	PublicIPv6    *string
	BackendType   string
	BackendData   json.RawMessage
	BackendV6Data json.RawMessage
	Weft          *Stamp
}

type tunnelJSON struct {
	VNI     uint32
	VtepMAC string
}

// ParseAttributes reads the value of a lease. Errors name the field.
func ParseAttributes(value []byte) (Attributes, error) {
	var j leaseJSON
	if err := json.Unmarshal(value, &j); err != nil {
		return Attributes{}, jsonError(`{"PublicIP":"172.30.0.1","BackendType":"host-gw"}`, err)
	}
	return j.attributes(etcdWords)
}

// attributes returns what the fields mean. Errors name them by the words of
// the form that they were written in.
func (j leaseJSON) attributes(w words) (Attributes, error) {
	a := Attributes{BackendType: strings.ToLower(j.BackendType), Weft: j.Weft}
	for _, f := range []struct {
		field string
		text  *string
		is    func(netip.Addr) bool
		addr  *netip.Addr
	}{
		{w.publicIP, j.PublicIP, netip.Addr.Is4, &a.PublicIP},
		{w.publicIPv6, j.PublicIPv6, netip.Addr.Is6, &a.PublicIPv6},
	} {
		if f.text == nil || *f.text == "" {
			continue
		}
		addr, err := netip.ParseAddr(*f.text)
		// flannel writes the unspecified address for none.
		if err == nil && addr.IsUnspecified() {
			continue
		}
		if err != nil || !f.is(addr) || !ordinary(addr) {
			return Attributes{}, fmt.Errorf("%s: %q is not a node's address of that family", f.field, *f.text)
		}
		*f.addr = addr
	}
	if a.BackendType != BackendVXLAN {
		return a, nil
	}
	var err error
	if a.Tunnel, err = parseTunnel(w.data, j.BackendData); err != nil {
		return Attributes{}, err
	}
	if a.TunnelV6, err = parseTunnel(w.dataV6, j.BackendV6Data); err != nil {
		return Attributes{}, err
	}
	return a, nil
}

func parseTunnel(field string, data json.RawMessage) (*TunnelEnd, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	var j tunnelJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, fmt.Errorf("%s: %w", field, jsonError(`{"VNI":1,"VtepMAC":"0a:58:0a:01:00:02"}`, err))
	}
	mac, err := plan.ParseMAC(j.VtepMAC)
	if err != nil {
		return nil, fmt.Errorf("%s.VtepMAC: %w", field, err)
	}
	if j.VNI > plan.MaxVNI {
		return nil, fmt.Errorf("%s.VNI: %d is above %d", field, j.VNI, plan.MaxVNI)
	}
	return &TunnelEnd{VNI: j.VNI, MAC: mac}, nil
}

// Merge returns the value of a lease that says what a says, with all fields
// of value, which may be empty, that a does not know.
func (a Attributes) Merge(value json.RawMessage) json.RawMessage {
	fields := fieldsOf(value)
	publicIP := "0.0.0.0"
	if a.PublicIP.IsValid() {
		publicIP = a.PublicIP.String()
	}
	fields.set("PublicIP", publicIP)
	fields.set("PublicIPv6", nil)
	if a.PublicIPv6.IsValid() {
		fields.set("PublicIPv6", a.PublicIPv6.String())
	}
	fields.set("BackendType", a.BackendType)
	fields.setTunnel("BackendData", a.Tunnel)
	fields.setTunnel("BackendV6Data", a.TunnelV6)
	fields.remove("Weft")
	if a.Weft != nil {
		fields.set("Weft", a.Weft)
	}
	return fields.encode()
}

// object is a JSON object whose unknown fields are kept.
type object map[string]json.RawMessage

func fieldsOf(value json.RawMessage) object {
	var o object
	if json.Unmarshal(value, &o) != nil || o == nil {
		return object{}
	}
	return o
}

// remove takes away a field, which decoding matches in any case.
func (o object) remove(name string) {
	for k := range o {
		if strings.EqualFold(k, name) {
			delete(o, k)
		}
	}
}

func (o object) set(name string, v any) {
	o.remove(name)
	o[name], _ = json.Marshal(v) // strings, numbers and valid JSON only
}

func (o object) setTunnel(name string, t *TunnelEnd) {
	if t == nil {
		o.remove(name)
		return
	}
	var data object
	for _, k := range slices.Sorted(maps.Keys(o)) { // there may be two in different cases
		if strings.EqualFold(k, name) {
			data = fieldsOf(o[k])
		}
	}
	if data == nil {
		data = object{}
	}
	data.set("VNI", t.VNI)
	data.set("VtepMAC", t.MAC.String())
	o.set(name, data.encode())
}

func (o object) encode() json.RawMessage {
	out, _ := json.Marshal(o) // values are valid JSON
	return out
}
