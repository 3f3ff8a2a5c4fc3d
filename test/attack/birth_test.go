package attack

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// birthAttacks are those of what runs in a pod's network namespace before ADD.
var birthAttacks = []attack{
	{
		name: "before_add", by: podWithRaw, ip: both, race: true,
		must: "get a packet out as somebody else while its interface is being made",
		try:  func(t *trial) { t.bornSending(false) },
	},
	{
		name: "before_add_with_its_interface_up", by: podWithAdmin, ip: both, race: true,
		must: "get a packet out as somebody else while its interface is being made, by bringing that up itself",
		try:  func(t *trial) { t.bornSending(true) },
	},
	{
		name: "router_advertisement_where_nodes_take_them", by: podWithRaw, ip: noFamily,
		must: "make itself the router of a node that takes router advertisements on new interfaces",
		try: func(t *trial) {
			t.v6 = true
			node := t.owner(t.nodes["node1"])
			before := t.run(node, "sysctl", "-n", "net.ipv6.conf.default.accept_ra")
			t.run(node, "sysctl", "-qw", "net.ipv6.conf.default.accept_ra=2")
			defer t.sh(node, "sysctl -qw net.ipv6.conf.default.accept_ra="+before)
			t.advertise(t.guest("node1"))
		},
	},
}

// births is how many pods are born: what is open for a moment is not met every
// time.
const births = 8

// bornSending has pods send with others' sources from the moment that they have
// an interface.
func (t *trial) bornSending(up bool) {
	near, mallory := t.pods["near"], t.pods["mallory"]
	w := t.watch(near.arriving)
	sources := []netip.Addr{t.addr(t.pods["far"]), t.addr(t.nodes["node1"]), t.addr(t.nodes["node2"]), t.pick("172.30.0.1", "fd30::1")}
	mac := plan.MAC{0x0a, 0x58, 1, 2, 3, 4}
	var last *machine
	arrived := func() bool {
		return slices.ContainsFunc(w.forbidden, func(p probe) bool { return near.arriving.saw(p.word) != nil })
	}
	for i := 0; i < births && !arrived(); i++ {
		m := t.sandbox("node1")
		h := t.hand(m)
		w.forbid(fmt.Sprintf("pod %d, as one of %v", i+1, sources), func(word string) {
			var frames [][]byte
			for _, source := range sources {
				frames = append(frames, frame(mac, mallory.gateway, udpPacket(source, t.at(near, port), word)))
			}
			flooded := make(chan error, 1)
			go func() {
				_, err := h.order(order{Do: "flood", Device: "eth0", Frames: frames, Count: 3000, Up: up, Wait: patience})
				flooded <- err
			}()
			if err := t.attach(m, 0, 0); err != nil {
				t.Fatal(err)
			}
			if err := <-flooded; err != nil {
				t.Fatalf("it could not send: %v", err)
			}
		})
		last = m
	}
	w.control("its own address, once it has one", func(word string) {
		t.send(t.hand(last), last, udpPacket(t.addr(last), t.at(near, port), word))
	})
}
