package plan_test

import (
	"fmt"
	"net/netip"

	"github.com/weftnet/weft/plan"
)

// A node with two pods, of which one must not be reached by the other.
const twoPods = `
node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint weft1 network default addresses 10.1.1.2 name default/web tag 5 # Pod default/web
endpoint weft2 network default addresses 10.1.1.3 name default/db tag 6 ingress-policy db # Pod default/db
route default 10.1.1.2/32 endpoint weft1 # Pod default/web
route default 10.1.1.3/32 endpoint weft2 # Pod default/db
verdict db ingress from 5 tcp 5432 allow # NetworkPolicy default/db ingress[0]
verdict db ingress otherwise deny # NetworkPolicy default/db
`

func ExampleExplain() {
	plans, err := plan.ParseAll(twoPods)
	if err != nil {
		fmt.Println(err)
		return
	}
	flow, err := plan.ParseFlow("10.1.1.2 to 10.1.1.3 tcp 22")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(plan.Explain(plans, flow))
	// Output:
	// denied: ingress policy db denies it, by NetworkPolicy default/db
	//   node1  endpoints  default/web sends from its own address
	//                     endpoint weft1 network default addresses 10.1.1.2 tag 5 name default/web # Pod default/web
	//   node1  routes     to the local endpoint weft2
	//                     route default 10.1.1.3/32 endpoint weft2 # Pod default/db
	//   node1  verdicts   ingress policy denies tag 5
	//                     verdict db ingress otherwise deny # NetworkPolicy default/db
}

func ExampleBuilder() {
	route := plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.0.0/16")}
	b := plan.NewBuilder(nil)
	b.PutRoute(route, plan.Route{Way: plan.ToDrop, Origin: "ClusterNetwork default"})
	before := b.Build()

	b = plan.NewBuilder(before) // states everything again
	b.PutRoute(route, plan.Route{Way: plan.ToGateway})
	after := b.Build()

	fmt.Print(before.Diff(after))
	// Output:
	// - route default 10.1.0.0/16 drop # ClusterNetwork default
	// + route default 10.1.0.0/16 gateway
}
