package networkpolicy

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// A condition that an enforcing plug-in left does not outlive it, and where there
// is no condition an Event says that nobody enforces a policy, once.
func TestUnenforcedIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		cluster := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "strict"},
			Spec: policyv1alpha2.ClusterNetworkPolicySpec{Tier: policyv1alpha2.AdminTier, Priority: 1,
				Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}}}}
		meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: Enforced, Status: metav1.ConditionTrue, Reason: ReasonInForce})
		if _, err := r.Create(t.Context(), api.ClusterNetworkPolicy, cluster); err != nil {
			t.Fatal(err)
		}
		egress := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "out"}, Spec: networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{}}}
		if _, err := r.Create(t.Context(), api.EgressNetworkPolicy, egress); err != nil {
			t.Fatal(err)
		}
		web := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
		if _, err := r.Create(t.Context(), api.NetworkPolicy, web); err != nil {
			t.Fatal(err)
		}
		want := func(u Unenforced, status metav1.ConditionStatus, reason string) {
			t.Helper()
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- u.RunCluster(ctx, plugin.ClusterEnv{Registry: r, Log: slog.New(slog.DiscardHandler)})
			}()
			time.Sleep(time.Minute)
			o, err := r.Get(t.Context(), api.ClusterNetworkPolicy, registry.Key{Name: "strict"})
			if err != nil {
				t.Fatal(err)
			}
			c := meta.FindStatusCondition(o.(*policyv1alpha2.ClusterNetworkPolicy).Status.Conditions, Enforced)
			if c == nil || c.Status != status || c.Reason != reason {
				t.Errorf("the condition is %+v", c)
			}
			events, _, err := r.List(t.Context(), api.Event)
			if err != nil {
				t.Fatal(err)
			}
			said := 0
			for _, o := range events {
				if e := o.(*corev1.Event); e.Reason == reason && e.InvolvedObject.Name == "web" && e.InvolvedObject.Namespace == "shop" {
					said++
				}
			}
			if said != 1 {
				t.Errorf("%d Events of %d are about the NetworkPolicy", said, len(events))
			}
			// What no plug-in enforces nobody enforced before either.
			said = 0
			for _, o := range events {
				if e := o.(*corev1.Event); e.InvolvedObject.Kind == "EgressNetworkPolicy" && e.Reason == ReasonNobodyEnforces &&
					e.Message == "nobody enforces it under plug-in "+u.Plugin+"; delete it" {
					said++
				}
			}
			if said != 1 {
				t.Errorf("%d Events of %d are about the EgressNetworkPolicy", said, len(events))
			}
			stop()
			<-ended
		}
		kinds := map[*registry.Kind]Unread{api.NetworkPolicy: {}, api.ClusterNetworkPolicy: {}, api.EgressNetworkPolicy: {Never: true, Remedy: "delete it"}}
		want(Unenforced{Plugin: "openshift-subnet", Kinds: kinds}, metav1.ConditionFalse, ReasonNobodyEnforces)
		want(Unenforced{Plugin: "openshift-subnet", Kinds: kinds}, metav1.ConditionFalse, ReasonNobodyEnforces) // as a controller that starts again
		want(Unenforced{Plugin: "elephant", Unknown: true, Kinds: kinds}, metav1.ConditionUnknown, ReasonPluginUnknown)
	})
}
