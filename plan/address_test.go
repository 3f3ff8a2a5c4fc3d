package plan

import (
	"net/netip"
	"testing"
)

func TestAddressNamesItsNetwork(t *testing.T) {
	a := netip.MustParseAddr("10.1.0.2")
	for _, test := range []struct {
		address Address
		want    string
	}{
		{Address{DefaultNetwork, a}, "10.1.0.2"},
		{Address{"red", a}, "10.1.0.2 in network red"},
	} {
		if got := test.address.String(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
	if (Address{"red", a}) == (Address{DefaultNetwork, a}) {
		t.Error("one address in two networks is the same")
	}
}
