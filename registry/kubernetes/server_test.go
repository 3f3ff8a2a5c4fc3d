package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/kubernetes"
	"github.com/weftnet/weft/registry/registrytest"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// patience is how long tests wait for what must come.
const patience = time.Minute

// as returns a registry for a user.
func (s *server) as(t *testing.T, user string, fields map[*registry.Kind]string) *kubernetes.Registry {
	t.Helper()
	kubeconfig, err := s.controlPlane(t).Kubeconfig(user)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, kubernetes.Config{REST: config, Fields: fields, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { r.Close() })
	return r
}

// admin returns a registry that may do everything.
func (s *server) admin(t *testing.T, fields map[*registry.Kind]string) *kubernetes.Registry {
	t.Helper()
	r := open(t, kubernetes.Config{REST: s.controlPlane(t).RESTConfig(), Fields: fields, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { r.Close() })
	return r
}

// post sends an object of any kind to the API server.
func (s *server) post(t *testing.T, path string, o any) {
	t.Helper()
	client, err := rest.HTTPClientFor(s.controlPlane(t).RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Post(s.running.Server()+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		t.Fatalf("POST %s: %s", path, answer.Status)
	}
}

// until calls a function until it succeeds.
func until(t *testing.T, what string, call func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := call()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
	}
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "1"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "theirs", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.11"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{MachineID: "theirs"},
		},
	}
}

// wholeNode is the kind of nodes as others see them.
var wholeNode = func() *registry.Kind {
	k := *api.Node
	k.Keep, k.Validate = nil, nil
	return &k
}()

// An agent may read nodes and write their status, and needs no more to report
// that its network is there; what others wrote stays.
func TestStatusOfANode(t *testing.T) {
	admin := cached.admin(t, nil)
	created, err := admin.Create(t.Context(), wholeNode, newNode("status"))
	if err != nil {
		t.Fatal(err)
	}
	if n := created.(*corev1.Node); len(n.Spec.Taints) == 0 || n.Status.NodeInfo.MachineID != "theirs" || len(n.Status.Conditions) != 1 {
		t.Fatalf("the node was created as %+v", n)
	}
	cached.allow(t, "agent", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}})
	agent := cached.as(t, "agent", nil)
	var o registry.Object
	until(t, "the right to read a node", func() (err error) {
		o, err = agent.Get(t.Context(), api.Node, registry.Key{Name: "status"})
		return err
	})
	node := o.(*corev1.Node)
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "Weft"})
	updated, err := agent.Update(t.Context(), api.Node, node)
	if err != nil {
		t.Fatal(err)
	}
	if n := updated.(*corev1.Node); len(n.Status.Conditions) != 2 || n.ManagedFields != nil {
		t.Errorf("Update returned %+v", n)
	}
	same, err := agent.Update(t.Context(), api.Node, updated)
	if err != nil || same.GetResourceVersion() != updated.GetResourceVersion() {
		t.Errorf("an update of nothing: %v, %v", same, err)
	}
	after, err := admin.Get(t.Context(), wholeNode, registry.Key{Name: "status"})
	if err != nil {
		t.Fatal(err)
	}
	if n := after.(*corev1.Node); len(n.Spec.Taints) == 0 || n.Status.NodeInfo.MachineID != "theirs" || n.Labels["a"] != "1" || len(n.Status.Conditions) != 2 {
		t.Errorf("after the update the node is %+v", n)
	}
	// What it may not do is said so that it can be put right.
	node = updated.(*corev1.Node)
	node.Labels = map[string]string{"b": "2"}
	_, err = agent.Update(t.Context(), api.Node, node)
	wantRight(t, err, "agent", "patch", "nodes")
	_, _, err = agent.List(t.Context(), api.Node)
	wantRight(t, err, "agent", "list", "nodes")
	_, err = agent.Acquire(t.Context(), "l", "me", time.Minute)
	wantRight(t, err, "agent", "list", "leases")
	err = agent.Delete(t.Context(), api.Pod, registry.Key{Namespace: "ns", Name: "p"}, "")
	wantRight(t, err, "agent", "delete", "pods")

	if n := requests(t, agent, "patch", "nodes/status", "200"); n != 1 {
		t.Errorf("%v changes of a status were counted, want 1", n)
	}
	if n := requests(t, agent, "list", "nodes", "403"); n != 1 {
		t.Errorf("%v refused lists were counted, want 1", n)
	}
}

// requests returns how many requests a registry has counted of some kind.
func requests(t *testing.T, r *kubernetes.Registry, verb, resource, code string) float64 {
	t.Helper()
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(r.Collector())
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"verb": verb, "resource": resource, "code": code}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "weft_api_requests_total" && maps.Equal(got, want) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func wantRight(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("%v: want %v", err, registry.ErrUnavailable)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), `"`+w+`"`) {
			t.Errorf("%v: want an error that names %q", err, w)
		}
	}
}

// allow gives a user rights in the whole cluster.
func (s *server) allow(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: user}
	s.post(t, "/apis/rbac.authorization.k8s.io/v1/clusterroles", rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules})
	s.post(t, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
}

// The kind of Weft's own configuration, from when it is not installed.
func TestClusterConfig(t *testing.T) {
	ctx, key := t.Context(), registry.Key{Name: api.DefaultName}
	r := cached.admin(t, nil)
	_, err := r.Get(ctx, api.ClusterConfigKind, key)
	if errors.Is(err, registry.ErrNotFound) || !errors.Is(err, registry.ErrNotInstalled) || !errors.Is(err, registry.ErrUnavailable) || !strings.Contains(err.Error(), "CustomResourceDefinition clusterconfigs.weft.network") {
		t.Fatalf("without its CustomResourceDefinition: %v", err)
	}
	cache := registry.NewCache(r, []*registry.Kind{api.ClusterConfigKind}, slog.New(slog.DiscardHandler))
	cacheCtx, stop := context.WithCancel(ctx)
	defer stop()
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		cache.Run(cacheCtx)
	}()
	until(t, "the cache to say what is missing", func() error {
		if err := cache.Err(); err == nil || !strings.Contains(err.Error(), "clusterconfigs.weft.network") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	files, err := filepath.Glob("../../deploy/chart/files/crds/*clusterconfig*.yaml")
	if err != nil || len(files) != 1 {
		t.Skip("there is no CustomResourceDefinition of ClusterConfig in deploy/chart")
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var definition any
	if err := yaml.Unmarshal(text, &definition); err != nil {
		t.Fatal(err)
	}
	cached.post(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
	until(t, "the cache to follow the kind", func() error { return cache.Err() })

	c := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{MTU: 1400}}
	c.Status.Subnets = &api.SubnetLedger{Cursor: map[string]string{"10.128.0.0/14": "10.128.0.0/23"}}
	o, err := r.Create(ctx, api.ClusterConfigKind, c)
	if err != nil {
		t.Fatal(err)
	}
	c = o.(*api.ClusterConfig)
	if c.Spec.MTU != 1400 || c.Status.Subnets == nil || c.Status.Subnets.Cursor["10.128.0.0/14"] != "10.128.0.0/23" {
		t.Fatalf("created as %+v", c)
	}
	c.Spec.MTU = 1300
	c.Status.Subnets.Cursor = map[string]string{"10.128.0.0/14": "10.128.2.0/23"}
	c.Status.Subnets.Pending = []api.SubnetGrant{{Subnet: "10.128.2.0/23", Node: "n1"}}
	if o, err = r.Update(ctx, api.ClusterConfigKind, c); err != nil {
		t.Fatal(err)
	}
	c = o.(*api.ClusterConfig)
	if c.Spec.MTU != 1300 || len(c.Status.Subnets.Pending) != 1 {
		t.Fatalf("updated to %+v", c)
	}
	c.Spec.MTU, c.Status.Subnets = 0, nil
	if o, err = r.Update(ctx, api.ClusterConfigKind, c); err != nil {
		t.Fatal(err)
	}
	if c = o.(*api.ClusterConfig); c.Spec.MTU != 0 || c.Status.Subnets != nil {
		t.Fatalf("emptied to %+v", c)
	}
	until(t, "the cache to have the last state", func() error {
		if got := registry.GetAs[*api.ClusterConfig](cache, api.ClusterConfigKind, key); got == nil || got.ResourceVersion != c.ResourceVersion {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
	if err := r.Delete(ctx, api.ClusterConfigKind, key, c.ResourceVersion); err != nil {
		t.Error(err)
	}
	stop()
	<-ran
}

// An agent follows one node's pods, and one object of a kind, alone.
func TestSelections(t *testing.T) {
	ctx := t.Context()
	admin := cached.admin(t, nil)
	if _, err := admin.Create(ctx, api.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "selections"}}); err != nil {
		t.Fatal(err)
	}
	whole := *api.Pod
	whole.Keep, whole.Validate = nil, nil
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "selections", Name: name},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	}
	for name, node := range map[string]string{"here": "n1", "there": "n2", "nowhere": ""} {
		if _, err := admin.Create(ctx, &whole, pod(name, node)); err != nil {
			t.Fatal(err)
		}
	}
	mine := *api.Pod
	mine.Only = registry.Key{Namespace: "selections", Name: "there"}
	r := cached.admin(t, map[*registry.Kind]string{api.Pod: "spec.nodeName=n1"})
	for k, want := range map[*registry.Kind]string{api.Pod: "here", &mine: "there"} {
		objects, revision, err := r.List(ctx, k)
		if err != nil || len(objects) != 1 || objects[0].GetName() != want {
			t.Fatalf("listed %v, %v, want %s", objects, err, want)
		}
		if p := objects[0].(*corev1.Pod); len(p.Spec.Containers) != 0 {
			t.Errorf("more than the kind keeps: %+v", p)
		}
		w, err := r.Watch(ctx, k, revision)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"there", "here"} {
			if _, err := registry.Modify(ctx, admin, &whole, registry.Key{Namespace: "selections", Name: name}, func(p *corev1.Pod) error {
				p.Labels = map[string]string{"seen": want}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case e := <-w.Events():
			if e.Object.GetName() != want || e.Object.GetLabels()["seen"] != want {
				t.Errorf("event %+v, want one of %s", e, want)
			}
		case <-time.After(patience):
			t.Errorf("no event of %s came", want)
		}
	}
}

// A cache lives through the death of the API server and what happened before
// the next one was there.
func TestServerIsKilled(t *testing.T) {
	cp := cached.controlPlane(t)
	cached.clean(t)
	r := cached.admin(t, map[*registry.Kind]string{registrytest.Setting: notSystem})
	k := registrytest.Setting
	create := func(name string) error {
		_, err := r.Create(t.Context(), k, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
		if errors.Is(err, registry.ErrExists) {
			return nil
		}
		return err
	}
	if err := create("before"); err != nil {
		t.Fatal(err)
	}
	cache := registry.NewCache(r, []*registry.Kind{k}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		cache.Run(ctx)
	}()
	defer func() { stop(); <-ran }()
	has := func(name string) func() error {
		return func() error {
			if cache.Get(k, registry.Key{Namespace: "ns", Name: name}) == nil {
				return fmt.Errorf("it has not; its trouble is %w", cache.Err())
			}
			return nil
		}
	}
	until(t, "the cache to have the first", has("before"))
	if err := cp.Kill(controlplane.APIServer); err != nil {
		t.Fatal(err)
	}
	until(t, "the cache to notice", func() error {
		if !errors.Is(cache.Err(), registry.ErrUnavailable) {
			return fmt.Errorf("it says %w", cache.Err())
		}
		return nil
	})
	if err := has("before")(); err != nil {
		t.Error(err)
	}
	if err := cp.Restart(t.Context(), controlplane.APIServer); err != nil {
		t.Fatal(err)
	}
	until(t, "the API server", func() error { return create("after") })
	until(t, "the cache to have what came after", has("after"))
	until(t, "the cache to be content", func() error { return cache.Err() })
}

// A server that was restored from an old backup knows less than its watchers.
func TestWatchAfterLossOfHistory(t *testing.T) {
	r := cached.admin(t, nil)
	if _, err := r.Watch(t.Context(), api.Node, "1000000000"); !errors.Is(err, registry.ErrCompacted) {
		t.Errorf("a watch from the future says %v, want %v", err, registry.ErrCompacted)
	}
}

func TestPing(t *testing.T) {
	if err := cached.admin(t, nil).Ping(t.Context()); err != nil {
		t.Error(err)
	}
	config := cached.controlPlane(t).RESTConfig()
	config.TLSClientConfig.CAData, config.TLSClientConfig.CAFile = nil, ""
	r := open(t, kubernetes.Config{REST: config})
	defer r.Close()
	if err := r.Ping(t.Context()); !errors.Is(err, registry.ErrUnavailable) || !strings.Contains(err.Error(), "is the CA the one") {
		t.Errorf("a server whose certificate is not known: %v", err)
	}
}
