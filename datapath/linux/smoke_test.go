package linux

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/weftnet/weft/plan"
)

func TestSmoke(t *testing.T) {
	sh := func(s string) string {
		out, err := exec.Command("sh", "-c", s).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", s, err, out)
		}
		return string(out)
	}
	exec.Command("sh", "-c", "ip netns del weftsmoke").Run()
	sh("ip netns add weftsmoke; ip -n weftsmoke link set lo up; ip -n weftsmoke link add eth0 type bridge; ip -n weftsmoke addr add 172.30.0.2/24 dev eth0; ip -n weftsmoke link set eth0 up; ip -n weftsmoke link add weftaaa type veth peer name p1; ip -n weftsmoke link set weftaaa up; ip -n weftsmoke link set p1 up")
	defer sh("ip netns del weftsmoke")
	p, err := plan.Parse(`node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
pool default fd00:1::/64 gateway fd00:1::1
tunnel vxlan vni 0 port 4789 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
endpoint weftaaa network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02 anti-spoof
route default 10.1.1.2/32 endpoint weftaaa
route default fd00:1::2/128 endpoint weftaaa
route default 10.1.2.0/24 tunnel node2 via 172.30.0.3 mac 0a:58:ac:1e:00:03
route default fd00:2::/64 tunnel node2 via 172.30.0.3 mac 0a:58:ac:1e:00:03
route default 172.30.0.3/32 tunnel node2 via 172.30.0.3 mac 0a:58:ac:1e:00:03 endpoints-only
route default 10.9.0.0/24 nexthop 172.30.0.9
route default 10.8.0.0/24 drop
route default 0.0.0.0/0 gateway
route default ::/0 gateway
egress default any 0.0.0.0/0 masquerade
egress default any 10.1.0.0/16 direct
egress default any 9.9.9.9/32 drop
egress default any ::/0 masquerade
`)
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewAt("/run/netns/weftsmoke", Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Apply(t.Context(), p); err != nil {
		t.Error(err)
	}
	for _, w := range d.writes {
		fmt.Println(w)
	}
	fmt.Println(sh("ip -n weftsmoke -d link show weft-vxlan; ip -n weftsmoke a; ip -n weftsmoke r show table all proto 87; ip -n weftsmoke rule; ip -n weftsmoke -6 rule;ip -n weftsmoke -6 r show table all proto 87; ip -n weftsmoke neigh; bridge -n weftsmoke fdb show dev weft-vxlan; ip netns exec weftsmoke nft list ruleset"))
	d2, _ := NewAt("/run/netns/weftsmoke", Config{})
	if err := d2.Apply(t.Context(), p); err != nil {
		t.Error(err)
	}
	fmt.Println("AGAIN", d2.writes)
	if err := d2.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	fmt.Println("REMOVE", d2.writes)
}
