package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/networkpolicy"
)

// largePolicy is about app=web, with so many rules from all but an address, for a port
// each; the last is for web's own port, and all but an address that is nobody's.
func largePolicy(rules int) string {
	var b strings.Builder
	b.WriteString("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: large, namespace: default}, spec: {podSelector: {matchLabels: {app: web}}, ingress: [")
	for i := range rules - 1 {
		fmt.Fprintf(&b, "{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [203.%d.%d.0/24]}}], ports: [{port: %d}]},", i/256, i%256, 10000+2*i)
	}
	fmt.Fprintf(&b, "{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [198.51.100.0/24]}}], ports: [{port: %d}]}]}}", lab.ServerPort)
	return b.String()
}

// TestLargePolicies writes a policy that is as large as one may be, and one that is
// larger: the first is in force, the second allows nothing, and who asks is told.
func TestLargePolicies(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1, Plugin: "openshift-networkpolicy"})
	web := c.policyPod("web", "node1", "web")
	c.policyPod("friend", "node1", "friend")
	c.policyPod("guest", "node1", "guest")
	c.apply(fmt.Sprintf(isolateAll, "web"))
	c.mustNotReach("pod/guest", web)

	c.apply(largePolicy(500))
	c.mustReach("pod/guest", web)
	c.wantStatus(0, "No problems.")
	c.weft("", "policy", "status").want(t, 0)

	const why = "501 rules, more than 500"
	c.weft(largePolicy(501), "policy", "try", "-f", "-").want(t, 0, why, "allowed -> denied")
	c.apply(largePolicy(501))
	c.mustNotReach("pod/guest", web)
	c.wantStatus(1, why)
	c.weft("", "policy", "status").want(t, 1, "not as written", why)
	c.weft("", "why", "guest", "web").want(t, 1, "isolation")
	c.eventually(func() error {
		events, _, err := c.registry().List(t.Context(), api.Event)
		for _, o := range events {
			if e := o.(*corev1.Event); e.InvolvedObject.Name == "large" && e.Reason == networkpolicy.ReasonNotEnforceable && strings.Contains(e.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("no Event says that the NetworkPolicy large is too large: %v", err)
	})
	// Another policy about the same pod is in force all the same.
	c.apply("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: small, namespace: default}, " +
		"spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]}}")
	c.mustReach("pod/friend", web)
	c.mustNotReach("pod/guest", web)

	c.apply(largePolicy(400))
	c.mustReach("pod/guest", web)
	c.wantStatus(0, "No problems.")
}
