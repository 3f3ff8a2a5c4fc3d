package flannel

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/plan"
)

// These names and values are what flanneld writes.
func TestLeaseOfFlanneld(t *testing.T) {
	for name, want := range map[string]Subnet{
		"10.5.1.0-24":                     {V4: netip.MustParsePrefix("10.5.1.0/24")},
		"10.5.1.0-24&fd00:5:0:1::-64":     {netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("fd00:5:0:1::/64")},
		"0.0.0.0-0&fd00:5:0:1::-64":       {V6: netip.MustParsePrefix("fd00:5:0:1::/64")},
		"10.12.13.128-30&fd00:12:13::-56": {netip.MustParsePrefix("10.12.13.128/30"), netip.MustParsePrefix("fd00:12:13::/56")},
	} {
		got, err := ParseSubnet(name)
		if err != nil || got != want || got.String() != name {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}

	a, err := ParseAttributes([]byte(`{"PublicIP":"172.30.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"3e:23:4f:b6:47:8a"}}`))
	want := Attributes{PublicIP: netip.MustParseAddr("172.30.0.1"), BackendType: "vxlan",
		Tunnel: &TunnelEnd{VNI: 1, MAC: plan.MAC{0x3e, 0x23, 0x4f, 0xb6, 0x47, 0x8a}}}
	if err != nil || !cmp.Equal(a, want, compareAddr) {
		t.Errorf("%v, %v", a, err)
	}
}

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func TestSubnetNamesThatAreNone(t *testing.T) {
	for _, name := range []string{"", "10.5.1.0", "10.5.1.1-24", "10.5.1.0-33", "10.5.1.0-024", "0.0.0.0-0", "10.5.1.0-24&", "10.5.1.0-24&10.6.0.0-24",
		"fd00::-64", "10.5.1.0-24&fd00:0::-64", "10.5.1.0-24&FD00::-64", "10.5.1.0-24&fe80::%eth0-64", "10.5.1.0-24&::ffff:1.2.3.0-120", "10.5.1.0-0", "x/10.5.1.0-24"} {
		if s, err := ParseSubnet(name); err == nil {
			t.Errorf("%q is taken for %v", name, s)
		}
	}
}

// What a later flannel, or somebody else, put into a lease stays there when
// its node writes its own part.
func TestMergeKeepsUnknownFields(t *testing.T) {
	a := Attributes{PublicIP: netip.MustParseAddr("172.30.0.1"), BackendType: BackendVXLAN, Tunnel: &TunnelEnd{VNI: 1, MAC: plan.MAC{2, 0, 0, 0, 0, 1}}}
	got := a.Merge([]byte(`{"publicip":"172.30.0.9","Owner":"team a","BackendData":{"VNI":3,"VtepMAC":"02:00:00:00:00:09","Zone":"b"},"BackendV6Data":{}}`))
	want := `{"BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01","Zone":"b"},"BackendType":"vxlan","Owner":"team a","PublicIP":"172.30.0.1","PublicIPv6":null}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := a.Merge([]byte(`not JSON`)); !json.Valid(got) {
		t.Errorf("over a value that is not JSON: %s", got)
	}
}

// What is said twice, in different cases, is merged into the same each time.
func TestMergeOfWhatIsSaidTwice(t *testing.T) {
	a := Attributes{BackendType: BackendVXLAN, Tunnel: &TunnelEnd{VNI: 1}}
	value := json.RawMessage(`{"BackendData":{"Rack":7},"backenddata":{"Rack":8},"BACKENDDATA":{"Rack":9}}`)
	first := a.Merge(value)
	for range 50 {
		if again := a.Merge(value); string(again) != string(first) {
			t.Fatalf("%s becomes %s, and %s", value, first, again)
		}
	}
}

func FuzzParseSubnet(f *testing.F) {
	for _, s := range []string{"10.5.1.0-24", "10.5.1.0-24&fd00:5::-64", "0.0.0.0-0&fd00::-64", "10.5.1.0-24&::-64", "&", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s, err := ParseSubnet(name)
		if err != nil {
			return
		}
		if s.String() != name || len(s.Prefixes()) == 0 {
			t.Errorf("%q is read as %v and written as %q", name, s, s)
		}
	})
}

func FuzzParseAttributes(f *testing.F) {
	f.Add([]byte(`{"PublicIP":"172.30.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"3e:23:4f:b6:47:8a"}}`))
	f.Add([]byte(`{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::1","BackendType":"host-gw","Weft":{"Node":"n","Config":{"Network":"10.0.0.0/8"}},"x":[1]}`))
	f.Add([]byte(`{"BackendType":"VXLAN","BackendV6Data":"x"}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		a, err := ParseAttributes(value)
		if err != nil {
			return
		}
		merged := a.Merge(value)
		b, err := ParseAttributes(merged)
		if err != nil {
			t.Fatalf("%s becomes %s: %v", value, merged, err)
		}
		for _, stamp := range []*Stamp{a.Weft, b.Weft} {
			if stamp != nil { // JSON may be spelled anew on the way
				stamp.Config = compacted(t, stamp.Config)
			}
		}
		if !cmp.Equal(a, b, compareAddr) {
			t.Errorf("%s becomes %s: %s", value, merged, cmp.Diff(a, b, compareAddr))
		}
		if again := b.Merge(merged); string(again) != string(merged) {
			t.Errorf("%s is merged into %s", merged, again)
		}
	})
}

// compacted returns JSON in the one form that encoding/json gives to a value.
func compacted(t *testing.T, value json.RawMessage) json.RawMessage {
	out, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
