package control

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/service"
)

// What is free in a range is given out to the last address, each once, and a range that is nearly
// full is looked through once, however many Services ask.
func TestEveryFreeAddressIsGiven(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/20"), netip.MustParsePrefix("fd00:96::/116")}
	for i, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		var unused []*service.Grant
		free := map[string]bool{}
		for n := range uint32(1 << 12) {
			ip := offset(ranges[i].Addr(), n)
			if n%500 == 7 {
				free[ip.String()] = true
			} else {
				unused = append(unused, &service.Grant{ObjectMeta: metav1.ObjectMeta{Name: ip.String()}})
			}
		}
		a := allot(ranges, nil, nil, unused)
		for n := range len(free) + 100 {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("web", n), UID: types.UID(fmt.Sprint("u", n))}}
			g, why := a.freeAddress(svc, family)
			if wants := len(free) > 0; wants != (g != nil) || wants == (why != "") {
				t.Fatalf("with %d free, %s gets %v, %q", len(free), svc.Name, g, why)
			}
			if g == nil {
				continue
			}
			if !free[g.Name] {
				t.Fatalf("%s gets %s, which is not free", svc.Name, g.Name)
			}
			delete(free, g.Name)
		}
		if rest := a.addresses[ranges[i]]; rest.many != 0 {
			t.Errorf("%d addresses of %s are to be looked at again", rest.many, ranges[i])
		}
	}
}
