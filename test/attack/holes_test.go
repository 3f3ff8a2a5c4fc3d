package attack

import "strings"

// holes are the attacks that succeed today, and what is missing against each.
// A test fails if one of these no longer succeeds: whoever mends it deletes its
// line. The key is an attack's name, with a cluster before it or a family
// after it where it succeeds only there: "flannel/name/ipv6".
var holes = map[string]string{
	"a_device_on_its_nodes_network":              "who has NET_ADMIN in the user namespace of the node has it for every network namespace that it can name, and a veth pair names the other end's",
	"flannel-host-gw/path_mtu_from_the_underlay": "without a tunnel, who is on the link to the next hop can be a router on the way",
	"heartbeats_on_the_underlay":                 "what nodes say to each other about addresses is not signed, as who can send it can forge ARP anyway",
	"a_balanced_address_on_the_underlay":         "an address on a link is whose host says so last; that he says so is told",
	"flannel/lease_with_anothers_address":        "of two leases with one address, which is believed hangs on their subnets",
}

// findHole returns the line that says that an attack succeeds on a cluster;
// family is "/ipv4", "/ipv6" or nothing.
func findHole(cluster, name, family string) (hole string, known bool) {
	for _, key := range []string{name, name + family, cluster + "/" + name, cluster + "/" + name + family} {
		if _, ok := holes[key]; ok {
			return key, true
		}
	}
	return "", false
}

// holeIsOf reports whether a line is one of an attack's.
func holeIsOf(hole string, a attack) bool {
	for _, c := range clusters {
		hole = strings.TrimPrefix(hole, c.name+"/")
	}
	return strings.TrimSuffix(strings.TrimSuffix(hole, "/ipv4"), "/ipv6") == a.name
}
