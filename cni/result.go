package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// linkSpec is the interface that an attachment stands for.
func linkSpec(a ipam.Attachment) podlink.Spec {
	s := podlink.Spec{
		ContainerID: a.ContainerID, Interface: a.IfName, Network: a.Network, Configuration: a.Configuration,
		Owner:         podlink.Owner{Namespace: a.Namespace, Pod: a.Pod, UID: a.UID},
		HostInterface: a.HostInterface, NetNS: a.NetNS,
		Addresses: a.Addresses, MAC: a.MAC(), MTU: a.MTU,
	}
	if a.Router.IsValid() {
		s.HostMAC = plan.MACOf(a.Router)
	}
	for _, gw := range a.Gateways {
		s.Gateways = append(s.Gateways, nextHop(gw))
		s.Destinations = append(s.Destinations, destinations(a, gw)...)
	}
	return s
}

// destinations are what an attachment's interface leads to through a gateway:
// everything of its family, or, of a secondary one, what is in its network.
func destinations(a ipam.Attachment, gateway netip.Addr) []netip.Prefix {
	everything, _ := gateway.Prefix(0)
	if !a.Secondary {
		return []netip.Prefix{everything}
	}
	return slices.DeleteFunc(slices.Clone(a.Prefixes), func(p netip.Prefix) bool { return p.Addr().Is4() != gateway.Is4() })
}

// nextHop is what a pod's default route points to, for a pool's gateway.
func nextHop(gateway netip.Addr) netip.Addr {
	if gateway.Is6() {
		return podlink.LinkLocalGateway
	}
	return gateway
}

// result is what ADD answers. Addresses have their full length as prefix,
// since nothing else is on the pod's link; plug-ins that follow (portmap, for
// hairpin traffic) take the prefix for what shares the pod's interface.
func result(a ipam.Attachment) *types100.Result {
	spec := linkSpec(a)
	r := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: a.HostInterface, Mac: spec.HostMAC.String(), Mtu: a.MTU},
			{Name: a.IfName, Mac: spec.MAC.String(), Mtu: a.MTU, Sandbox: a.NetNS},
		},
	}
	for i, addr := range a.Addresses {
		gw := spec.Gateways[i]
		r.IPs = append(r.IPs, &types100.IPConfig{
			Interface: types100.Int(1),
			Address:   net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
			Gateway:   gw.AsSlice(),
		})
		for _, to := range destinations(a, gw) {
			r.Routes = append(r.Routes, &types.Route{
				Dst: net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
				GW:  gw.AsSlice(),
			})
		}
	}
	return r
}

// render writes a result in a version of the specification.
func render(r *types100.Result, version string) ([]byte, error) {
	if older, err := cniversion.GreaterThan("1.1.0", version); err != nil {
		return nil, err
	} else if older {
		// The conversion keeps the interfaces' MTU, which came with 1.1.0.
		for _, i := range r.Interfaces {
			i.Mtu = 0
		}
	}
	converted, err := r.GetAsVersion(version)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(converted, "", "    ")
}

// parseResult reads a result of a version of the specification.
func parseResult(version string, data []byte) (*types100.Result, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	// The conversions do not expect null in a list.
	for _, name := range []string{"interfaces", "ips", "routes"} {
		var list []json.RawMessage
		if err := json.Unmarshal(fields[name], &list); given(fields[name]) && err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if slices.ContainsFunc(list, func(e json.RawMessage) bool { return !given(e) }) {
			return nil, fmt.Errorf("%s has an entry that is null", name)
		}
	}
	if _, ok := fields["cniVersion"]; !ok {
		fields["cniVersion"] = json.RawMessage(fmt.Sprintf("%q", version))
		data, _ = json.Marshal(fields)
	}
	r, err := create.CreateFromBytes(data)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// compareResult says how the result that a runtime remembers differs from
// what ADD answered; nil when it has all of that. Others in the list of
// plug-ins may have added to it.
func compareResult(prev *types100.Result, a ipam.Attachment) error {
	spec := linkSpec(a)
	var errs []error
	mismatch := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	find := func(name, sandbox string) (int, *types100.Interface) {
		for i, have := range prev.Interfaces {
			if have != nil && have.Name == name && (have.Sandbox == "") == (sandbox == "") {
				return i, have
			}
		}
		return -1, nil
	}
	if _, host := find(a.HostInterface, ""); host == nil {
		mismatch("prevResult lacks the node's interface %s", a.HostInterface)
	}
	index, pod := find(a.IfName, a.NetNS)
	switch {
	case pod == nil:
		mismatch("prevResult lacks the container's interface %s", a.IfName)
	case !strings.EqualFold(pod.Mac, spec.MAC.String()):
		mismatch("prevResult has the MAC address %q for %s, which has %s", pod.Mac, a.IfName, spec.MAC)
	}
	for _, addr := range a.Addresses {
		if !slices.ContainsFunc(prev.IPs, func(ip *types100.IPConfig) bool {
			return ip != nil && ip.Address.IP.Equal(addr.AsSlice()) && (ip.Interface == nil || *ip.Interface == index)
		}) {
			mismatch("prevResult lacks the address %s on %s", addr, a.IfName)
		}
	}
	for _, gw := range spec.Gateways {
		for _, to := range destinations(a, gw) {
			if slices.ContainsFunc(prev.Routes, func(r *types.Route) bool {
				if r == nil {
					return false
				}
				ones, _ := r.Dst.Mask.Size()
				return ones == to.Bits() && (ones == 0 || r.Dst.IP.Equal(to.Addr().AsSlice())) && r.GW.Equal(gw.AsSlice())
			}) {
				continue
			}
			what := "default route"
			if to.Bits() > 0 {
				what = "route to " + to.String()
			}
			mismatch("prevResult lacks the %s via %s", what, gw)
		}
	}
	return errors.Join(errs...)
}
