package deploy

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/controller"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/kubernetes"
)

// testRights has a controller work, and does what an agent does to the API,
// each with the token of its own pod: nothing may be missing, and nothing may
// be refused.
func (s *server) testRights(t *testing.T) {
	all := manifest(t)
	agentPod, controllerPod := pods(t, all)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node4"}}
	node, err := s.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.14"}}
	if _, err := s.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.client.CoordinationV1().Leases(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}

	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	open := func(config *rest.Config, fields map[*registry.Kind]string) *kubernetes.Registry {
		t.Helper()
		r, err := kubernetes.Open(kubernetes.Config{REST: config, Namespace: namespace, Fields: fields, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			r.Close()
			refused(t, r)
		})
		return r
	}

	leader := open(s.token(t, "weft-controller", s.runPod(t, controllerPod, "node4")), nil)
	dir := t.TempDir()
	seed := one[*corev1.ConfigMap](t, all, "weft").Data["objects.yaml"]
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(seed), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := controller.Seed(t.Context(), leader, dir, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	working.Go(func() {
		config := controller.Config{Registry: leader, Identity: "a", Plugin: plugins.Finder(leader.Serves), LeaseTTL: 15 * time.Second, Log: log}
		if err := controller.New(config).Run(ctx); err != nil {
			t.Error(err)
		}
	})

	local := open(s.token(t, "weft-agent", s.runPod(t, agentPod, "node4")), map[*registry.Kind]string{api.Pod: "spec.nodeName=node4"})
	limited, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	kinds := append(plugins.Kinds(), api.ClusterConfigKind, api.Pod, api.Namespace, api.NetworkPolicy, api.ClusterNetworkPolicy,
		api.TagKind, api.NodePodsKind, api.DomainNameKind)
	var served []*registry.Kind
	for _, k := range kinds {
		if local.Serves(k) && !slices.Contains(served, k) {
			served = append(served, k)
		}
	}
	cache := registry.NewCache(local, served, log)
	changes, unsubscribe := cache.Subscribe()
	defer unsubscribe()
	working.Go(func() { cache.Run(ctx) })
	if err := cache.WaitSynced(limited); err != nil {
		t.Fatal(errors.Join(err, cache.Err()))
	}
	key := registry.Key{Name: "node4"}
	for {
		if h := registry.GetAs[*networkv1.HostSubnet](cache, api.HostSubnet, key); h != nil && h.Subnet != "" {
			break
		}
		select {
		case <-changes:
		case <-limited.Done():
			t.Fatal("the controller gave node4 no subnet")
		}
	}

	lease, err := local.Acquire(limited, api.NodeLease("node4"), "node4 at 172.30.0.14", 40*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Modify(limited, local, api.Node, key, func(n *corev1.Node) error {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, api.OnLinkAnnotation, "172.30.0.0/24")
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, api.PluginsAnnotation, api.PluginReport{}.Text())
		n.Status.Conditions = append(n.Status.Conditions,
			corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "WeftIsReady"},
			corev1.NodeCondition{Type: api.NodeInSync, Status: corev1.ConditionTrue, Reason: "PlanLoaded"})
		return nil
	}); err != nil {
		t.Error(err)
	}
	if _, err := local.Get(limited, api.Pod, registry.Key{Namespace: namespace, Name: "weft-agent-node4"}); err != nil {
		t.Error(err)
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "weft-agent-node4.1"}, Reason: "InvalidAnnotation",
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: "weft-agent-node4"}}
	if _, err := local.Create(limited, api.Event, event); err != nil {
		t.Error(err)
	}
	writePolicies(limited, t, s.client, leader, local)
	s.testChange(limited, t, cache, changes)
	s.testPools(limited, t, cache, changes)
	if err := lease.Release(limited); err != nil {
		t.Error(err)
	}
}

// testChange has the controller read what speaks against a change of the plug-in, and say
// how far it is.
func (s *server) testChange(ctx context.Context, t *testing.T, cache *registry.Cache, changes <-chan struct{}) {
	t.Helper()
	patch := func(plugin string) error {
		return s.client.RESTClient().Patch(types.MergePatchType).AbsPath("/apis/weft.network/v1/clusterconfigs/default").
			Body([]byte(`{"spec": {"plugin": "` + plugin + `"}}`)).Do(ctx).Error()
	}
	if err := patch("flannel-networkpolicy"); err != nil {
		t.Fatal(err)
	}
	for {
		config := registry.GetAs[*api.ClusterConfig](cache, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
		// The Node has no podCIDR, as nothing gives any here.
		if c := meta.FindStatusCondition(config.Status.Conditions, api.PluginChanged); c != nil && c.Reason == api.PluginWaiting && strings.Contains(c.Message, "podCIDR") {
			break
		}
		select {
		case <-changes:
		case <-ctx.Done():
			t.Fatalf("the controller says nothing of a change but %+v", config.Status.Conditions)
		}
	}
	if err := patch("openshift-subnet"); err != nil {
		t.Fatal(err)
	}
}

// writePolicies writes what the leading controller and the agent of node4 write
// about policies.
func writePolicies(ctx context.Context, t *testing.T, users *clientset.Clientset, leader, agent registry.Registry) {
	t.Helper()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

	must(agent.Create(ctx, api.TagKind, &api.Tag{ObjectMeta: named("1001"), Spec: api.TagSpec{Namespace: "shop"}}))
	must(agent.Create(ctx, api.NodePodsKind, &api.NodePods{ObjectMeta: named("node4")}))
	must(agent.Create(ctx, api.NodeReportKind, &api.NodeReport{ObjectMeta: named("node4")}))
	now := metav1.Now()
	must(registry.Modify(ctx, leader, api.TagKind, registry.Key{Name: "1001"}, func(o *api.Tag) error { o.Spec.UnusedSince = &now; return nil }))
	must(registry.Modify(ctx, agent, api.TagKind, registry.Key{Name: "1001"}, func(o *api.Tag) error { o.Spec.UnusedSince = nil; return nil }))
	must(registry.Modify(ctx, agent, api.NodePodsKind, registry.Key{Name: "node4"}, func(o *api.NodePods) error {
		o.Pods = []api.TaggedPods{{Tag: 1001, Addresses: []string{"10.1.1.2"}}}
		return nil
	}))
	must(registry.Modify(ctx, agent, api.NodeReportKind, registry.Key{Name: "node4"}, func(o *api.NodeReport) error {
		o.Enforced = map[string]string{"networkpolicies": "1"}
		return nil
	}))

	must(leader.Create(ctx, api.DomainNameKind, &api.DomainName{ObjectMeta: named("example.com")}))
	must(registry.Modify(ctx, leader, api.DomainNameKind, registry.Key{Name: "example.com"}, func(o *api.DomainName) error {
		o.Addresses = []string{"192.0.2.1"}
		return nil
	}))
	// One that Weft would not take, so there is something to say of it.
	policy := `{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "admin"},
 "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [{"action": "Deny", "to": [{"domainNames": ["example.com"]}]}]}}`
	must(nil, users.RESTClient().Post().AbsPath("/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies").
		SetHeader("Content-Type", "application/json").Body([]byte(policy)).Do(ctx).Error())
	must(registry.Modify(ctx, leader, api.StoredClusterNetworkPolicy, registry.Key{Name: "admin"}, func(o *policyv1alpha2.ClusterNetworkPolicy) error {
		o.Status.Conditions = []metav1.Condition{{Type: "weft.network/Enforced", Status: metav1.ConditionTrue, Reason: "Enforced", LastTransitionTime: now}}
		return nil
	}))
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web.1"}, Reason: "Enforced",
		InvolvedObject: corev1.ObjectReference{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: "default", Name: "web"}}
	must(leader.Create(ctx, api.Event, event))
	for _, k := range []*registry.Kind{api.NetworkPolicy, api.ClusterNetworkPolicy, api.Namespace, api.TagKind, api.NodePodsKind, api.NodeReportKind, api.DomainNameKind} {
		_, revision, err := leader.List(ctx, k)
		must(nil, err)
		watching, stop := context.WithCancel(ctx)
		must(leader.Watch(watching, k, revision))
		stop()
	}
	must(nil, leader.Delete(ctx, api.TagKind, registry.Key{Name: "1001"}, ""))
	for _, k := range []*registry.Kind{api.NodePodsKind, api.NodeReportKind} {
		must(nil, leader.Delete(ctx, k, registry.Key{Name: "node4"}, ""))
	}
	must(nil, leader.Delete(ctx, api.DomainNameKind, registry.Key{Name: "example.com"}, ""))
}

// refused reports the requests of a registry that were refused: for a right
// that is missing (403), or by a policy (422).
func refused(t *testing.T, r *kubernetes.Registry) {
	t.Helper()
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(r.Collector())
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	requests := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			requests += m.GetCounter().GetValue()
			if labels["code"] == "403" || labels["code"] == "422" {
				t.Errorf("refused: %v", labels)
			}
		}
	}
	if requests == 0 {
		t.Error("no request was counted")
	}
}
