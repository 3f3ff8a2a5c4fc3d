package pools

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
)

// maxAsked is how many characters what a Service asks for may have: two addresses, and room.
const maxAsked = 200

// asking are the annotations by which Services ask for addresses. The last two are those of
// MetalLB, which users know.
var asking = []string{api.AddressesAnnotation, "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"}

// naming are the annotations of MetalLB by which Services ask for a pool, without saying for which
// of its addresses.
var naming = []string{"metallb.io/address-pool", "metallb.universe.tf/address-pool"}

// poolOf returns the name of the AddressPool that a Service asks for as it may be shown, and by
// which annotation; both are empty where it asks for none.
func poolOf(svc *corev1.Service) (name, annotation string) {
	for _, annotation := range naming {
		if name := svc.Annotations[annotation]; name != "" {
			return printable.Line(printable.Brief(name)), annotation
		}
	}
	return "", ""
}

// askedOf returns the addresses that a Service asks for, of each family one at most. problem
// says what is wrong with that; then it asks for nothing.
func askedOf(svc *corev1.Service) (asked map[corev1.IPFamily]netip.Addr, problem string) {
	by := make(map[corev1.IPFamily]string)
	asks := func(where, text string) string {
		if len(text) > maxAsked {
			return fmt.Sprintf("%s has %d characters: write one address of each family at most", where, len(text))
		}
		for one := range strings.SplitSeq(text, ",") {
			if one = strings.TrimSpace(one); one == "" {
				continue
			}
			a, err := netip.ParseAddr(one)
			if a = a.Unmap(); err != nil || a.Zone() != "" {
				return fmt.Sprintf("%s: %s is no IP address", where, printable.Line(fmt.Sprintf("%q", one)))
			}
			family := familyOf(a)
			switch before, twice := asked[family]; {
			case twice && before != a && by[family] == where:
				return fmt.Sprintf("%s: %s and %s are of one family: write one of each at most", where, before, a)
			case twice && before != a:
				return fmt.Sprintf("%s says %s and %s says %s: write one", by[family], before, where, a)
			case !twice:
				if asked == nil {
					asked = make(map[corev1.IPFamily]netip.Addr)
				}
				asked[family], by[family] = a, where
			}
		}
		return ""
	}
	for _, annotation := range asking {
		if text := svc.Annotations[annotation]; text != "" {
			if problem = asks("annotation "+annotation, text); problem != "" {
				return nil, problem
			}
		}
	}
	if text := svc.Spec.LoadBalancerIP; text != "" {
		if problem = asks("spec.loadBalancerIP", text); problem != "" {
			return nil, problem
		}
	}
	return asked, ""
}

// asksUs reports whether a Service asks for addresses of AddressPools in words that mean
// nothing to others.
func asksUs(svc *corev1.Service) bool {
	return svc.Annotations[api.AddressesAnnotation] != "" || svc.Spec.LoadBalancerClass != nil && *svc.Spec.LoadBalancerClass == api.LinkClass
}
