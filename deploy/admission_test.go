package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// token returns a client configuration with a token of a ServiceAccount, bound
// to a pod unless that is nil.
func (s *server) token(t *testing.T, account string, pod *corev1.Pod) *rest.Config {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	answer, err := s.client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.RESTConfig())
	config.BearerToken = answer.Status.Token
	return config
}

// as returns a client with such a token.
func (s *server) as(t *testing.T, account string, pod *corev1.Pod) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.token(t, account, pod))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// runPod makes a pod of a template that is scheduled to a node.
func (s *server) runPod(t *testing.T, p pod, node string) *corev1.Pod {
	t.Helper()
	o := &corev1.Pod{ObjectMeta: p.template.ObjectMeta, Spec: p.template.Spec}
	o.Name, o.Spec.NodeName = p.name+"-"+node, node
	o, err := s.client.CoreV1().Pods(namespace).Create(t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// testAdmission has agents and controllers do what is theirs, and more.
func (s *server) testAdmission(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	for _, name := range []string{"node1", "node2", "0x6f"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"example.com/rack": "7"}}}
		n.Spec.Taints = []corev1.Taint{{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
		n, err := s.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Conditions = []corev1.NodeCondition{ready}
		if _, err = s.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	agentPod, controllerPod := pods(t, manifest(t))
	agent := s.as(t, "weft-agent", s.runPod(t, agentPod, "node1"))
	// A node may be named like something that another system would encode.
	encoded := s.as(t, "weft-agent", s.runPod(t, agentPod, "0x6f"))
	unbound := s.as(t, "weft-agent", nil)
	controller := s.as(t, "weft-controller", s.runPod(t, controllerPod, "node2"))

	// A policy holds a moment after it is stored.
	s.until(t, func() (string, error) {
		if err := patch(t.Context(), agent, "nodes/node2", `{"metadata": {"annotations": {"weft.network/x": null}}}`); err == nil {
			return "", context.DeadlineExceeded
		}
		return "", nil
	})

	const (
		onLink    = `{"metadata": {"annotations": {"weft.network/on-link": "172.30.0.0/24", "weft.network/plugins": "{}"}}}`
		flannel   = `{"metadata": {"annotations": {"flannel.alpha.coreos.com/backend-type": "vxlan"}}}`
		networked = `{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"},
 {"type": "NetworkUnavailable", "status": "False", "reason": "WeftIsReady"}, {"type": "weft.network/InSync", "status": "True", "reason": "PlanLoaded"}]}}`
		metadataAndSpec = "Weft may write annotations and conditions of a Node, and nothing else of its metadata and spec"
		status          = "an agent may write conditions in the status of a Node, and nothing else"
		mayNot          = "cannot"
	)
	for _, test := range []struct {
		name        string
		client      *kubernetes.Clientset
		path, patch string
		refusal     string // empty if it is taken
	}{
		{"what the node is on-link with, and that it does no plug-in yet", agent, "nodes/node1", onLink, ""},
		{"flannel's annotations", agent, "nodes/node1", flannel, ""},
		{"another address for the node, as an administrator gives it", agent, "nodes/node1", `{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip-overwrite": "172.30.0.12"}}}`, "Weft may not write the annotation flannel.alpha.coreos.com/public-ip-overwrite"},
		{"which of its addresses a node uses, as an administrator says", agent, "nodes/node1", `{"metadata": {"annotations": {"flannel.alpha.coreos.com/node-public-ip": "172.30.0.12"}}}`, "Weft may not write the annotation flannel.alpha.coreos.com/node-public-ip"},
		{"the node's conditions", agent, "nodes/node1/status", networked, ""},
		{"nothing", agent, "nodes/node1", "{}", ""},
		{"another node's annotation", agent, "nodes/node2", onLink, "an agent may write the Node that it runs on, which is node1, and not node2"},
		{"another node's conditions", agent, "nodes/node2/status", networked, "which is node1, and not node2"},
		{"as if on a node", unbound, "nodes/node1", `{"metadata": {"annotations": {"weft.network/on-link": null}}}`, "not known, as its token is bound to none"},
		{"others' annotation", agent, "nodes/node1", `{"metadata": {"annotations": {"example.com/rack": "8"}}}`, "Weft may not write the annotation example.com/rack of a Node"},
		{"others' annotation removed", agent, "nodes/node1", `{"metadata": {"annotations": {"example.com/rack": null}}}`, "Weft may not write the annotation example.com/rack"},
		{"an annotation more", agent, "nodes/node1", `{"metadata": {"annotations": {"example.com/row": "1"}}}`, "Weft may not write the annotation example.com/row"},
		{"a label", agent, "nodes/node1", `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`, metadataAndSpec},
		{"a finalizer", agent, "nodes/node1", `{"metadata": {"finalizers": ["weft.network/x"]}}`, metadataAndSpec},
		{"an owner", agent, "nodes/node1", `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node2", "uid": "1"}]}}`, metadataAndSpec},
		{"cordon", agent, "nodes/node1", `{"spec": {"unschedulable": true}}`, metadataAndSpec},
		{"a taint removed", agent, "nodes/node1", `{"spec": {"taints": null}}`, metadataAndSpec},
		{"pods' addresses", agent, "nodes/node1", `{"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}`, metadataAndSpec},
		{"the kubelet's condition", agent, "nodes/node1/status", `{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`, "conditions NetworkUnavailable and weft.network/* of a Node, and no others"},
		{"all conditions removed", agent, "nodes/node1/status", `{"status": {"conditions": null}}`, "and no others"},
		{"capacity", agent, "nodes/node1/status", `{"status": {"capacity": {"cpu": "64"}}}`, status},
		{"addresses", agent, "nodes/node1/status", `{"status": {"addresses": [{"type": "InternalIP", "address": "172.30.0.12"}]}}`, status},
		{"the kubelet's port", agent, "nodes/node1/status", `{"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}`, status},
		{"a problem", controller, "nodes/node1", `{"metadata": {"annotations": {"weft.network/problem": "it has no subnet"}}}`, ""},
		{"flannel's annotations by a controller", controller, "nodes/node1", `{"metadata": {"annotations": {"flannel.alpha.coreos.com/backend-type": "host-gw"}}}`, "Weft may not write the annotation flannel.alpha.coreos.com/backend-type"},
		{"cordon by a controller", controller, "nodes/node1", `{"spec": {"unschedulable": true}}`, metadataAndSpec},
		{"conditions by a controller", controller, "nodes/node1/status", networked, mayNot},
		{"others do as they like", s.client, "nodes/node1", `{"metadata": {"labels": {"example.com/row": "1"}}, "spec": {"unschedulable": true}}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect(t, patch(t.Context(), test.client, test.path, test.patch), test.refusal)
		})
	}

	for _, test := range []struct {
		name, lease string
		client      *kubernetes.Clientset
		refusal     string
	}{
		{"the node's lease", "node--node1", agent, ""},
		{"another node's lease", "node--node2", agent, "an agent may hold the lease of the node that it runs on, and not node--node2"},
		{"the controller's lease", "controller", agent, "and not controller"},
		{"another's lease without a node", "node--node3", unbound, "and not node--node3"},
		{"the lease of a node named like an encoded name", "node--0x6f", encoded, ""},
		{"the lease of a node with a name in hexadecimal", "node--0x6e6f646532", agent, "and not node--0x6e6f646532"},
		{"a lease in hexadecimal", "0x6e6f64652f6e6f646532", agent, "and not 0x6e6f64652f6e6f646532"},
		{"a lease named by its sum", "0h3ff163603a7660f0d059a643f3de5bdeadb8664fdc3e360017ea6a4ede4817e2", agent, "and not 0h3ff1"},
		{"the lease to lead", "controller", controller, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			body := `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "` + test.lease + `"}, "spec": {"holderIdentity": "x"}}`
			err := test.client.CoordinationV1().RESTClient().Post().Namespace(namespace).Resource("leases").
				SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error()
			expect(t, err, test.refusal)
		})
	}
	leases := func(client *kubernetes.Clientset, name string) error {
		return client.CoordinationV1().RESTClient().Patch(types.MergePatchType).Namespace(namespace).Resource("leases").Name(name).
			Body([]byte(`{"spec": {"holderIdentity": "y"}}`)).Do(t.Context()).Error()
	}
	expect(t, leases(agent, "node--node1"), "")
	expect(t, leases(agent, "controller"), "and not controller")
	expect(t, leases(controller, "controller"), "")
	expect(t, leases(controller, "node--node1"), mayNot)

	s.testAdmissionOfOwn(t, agent, unbound)
	s.testAdmissionOfGrants(t, agent, controller)
}

// testAdmissionOfGrants has others than the controller say who has an address.
func (s *server) testAdmissionOfGrants(t *testing.T, agent, controller *kubernetes.Clientset) {
	const refusal = "the controller alone writes AddressGrants"
	create := func(client *kubernetes.Clientset, name string) error {
		body := `{"apiVersion": "weft.network/v1", "kind": "AddressGrant", "metadata": {"name": "` + name + `"}, "spec": {"namespace": "shop", "name": "web", "uid": "u", "pool": "public"}}`
		return client.RESTClient().Post().AbsPath("/apis/weft.network/v1/addressgrants").SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error()
	}
	change := func(client *kubernetes.Clientset) error {
		return client.RESTClient().Patch(types.MergePatchType).AbsPath("/apis/weft.network/v1/addressgrants/192.0.2.7").Body([]byte(`{"spec": {"uid": "v"}}`)).Do(t.Context()).Error()
	}
	expect(t, create(controller, "192.0.2.7"), "")
	expect(t, create(s.client, "192.0.2.8"), refusal)
	expect(t, create(agent, "192.0.2.8"), "cannot create")
	expect(t, change(s.client), refusal)
	expect(t, change(agent), "cannot patch")
	expect(t, change(controller), "")
	// What is in the way can be taken out of it by who may do so.
	expect(t, s.client.RESTClient().Delete().AbsPath("/apis/weft.network/v1/addressgrants/192.0.2.7").Do(t.Context()).Error(), "")
}

// testAdmissionOfOwn has agents write objects of Weft's own kinds.
func (s *server) testAdmissionOfOwn(t *testing.T, agent, unbound *kubernetes.Clientset) {
	create := func(client *kubernetes.Clientset, kind, name, content string) error {
		body := fmt.Sprintf(`{"apiVersion": "weft.network/v1", "kind": %q, "metadata": {"name": %q}%s}`, kind, name, content)
		return client.RESTClient().Post().AbsPath("/apis/weft.network/v1", plurals[kind]).
			SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error()
	}
	change := func(client *kubernetes.Clientset, kind, name, patch string) error {
		return client.RESTClient().Patch(types.MergePatchType).AbsPath("/apis/weft.network/v1", plurals[kind], name).
			Body([]byte(patch)).Do(t.Context()).Error()
	}
	const pods, report = `, "pods": [{"tag": 10, "addresses": ["10.1.1.2"]}]`, `, "enforced": {"networkpolicies": "1"}`
	s.until(t, func() (string, error) {
		if err := create(agent, "NodePods", "node9", pods); err == nil {
			return "", errors.Join(errors.New("an agent told of another node's pods"),
				s.client.RESTClient().Delete().AbsPath("/apis/weft.network/v1/nodepods/node9").Do(t.Context()).Error())
		}
		return "", nil
	})
	for kind, content := range map[string]string{"NodePods": pods, "NodeReport": report} {
		t.Run(kind, func(t *testing.T) {
			refusal := "an agent may write the " + kind + " of the node that it runs on, and not node2"
			label := `{"metadata": {"labels": {"a": "b"}}}`
			expect(t, create(agent, kind, "node1", content), "")
			expect(t, create(agent, kind, "node2", content), refusal)
			expect(t, create(unbound, kind, "node2", content), refusal)
			expect(t, create(s.client, kind, "node2", content), "")
			expect(t, change(agent, kind, "node1", label), "")
			expect(t, change(agent, kind, "node2", label), refusal)
			expect(t, change(s.client, kind, "node2", label), "")
		})
	}
	t.Run("Tag", func(t *testing.T) {
		const never = "what a tag stands for never changes"
		const mark = "an agent may take the mark unusedSince from a Tag, and not set it"
		expect(t, create(agent, "Tag", "1000", `, "spec": {"namespace": "shop", "labels": {"app": "web"}, "ports": [{"name": "http", "protocol": "TCP", "port": 80}]}`), "")
		large := func(size int) string {
			var labels []string
			for i := 0; size > 0; i++ {
				n := min(size, 8+60)
				labels = append(labels, fmt.Sprintf("%q: %q", fmt.Sprintf("key-%04d", i), strings.Repeat("v", max(n-8, 0))))
				size -= n
			}
			return `, "spec": {"namespace": "shop", "ports": [{"name": "http", "protocol": "TCP", "port": 80}], "labels": {` + strings.Join(labels, ", ") + "}}"
		}
		expect(t, create(agent, "Tag", "1007", large(16384-12)), "")
		expect(t, create(agent, "Tag", "1008", large(16384-11)), "no more than 16384 characters")
		expect(t, create(agent, "Tag", "1009", `, "spec": {"namespace": "shop", "unusedSince": "2026-01-01T00:00:00Z"}`), mark)
		for _, c := range []struct{ patch, byAgent, byOthers string }{
			{`{"spec": {"unusedSince": "2026-01-01T00:00:00Z"}}`, mark, ""},
			{`{"spec": {"unusedSince": "2026-01-02T00:00:00Z"}}`, mark, ""},
			{`{"metadata": {"labels": {"a": "b"}}}`, "", ""},
			{`{"spec": {"unusedSince": null}}`, "", ""},
			{`{"spec": {"namespace": "till"}}`, never, never},
			{`{"spec": {"labels": {"app": "db"}}}`, never, never},
			{`{"spec": {"labels": null}}`, never, never},
			{`{"spec": {"ports": null}}`, never, never},
		} {
			expect(t, change(agent, "Tag", "1000", c.patch), c.byAgent)
			expect(t, change(s.client, "Tag", "1000", c.patch), c.byOthers)
		}
	})
}

// plurals are the resources of those of Weft's own kinds that agents write.
var plurals = map[string]string{"NodePods": "nodepods", "NodeReport": "nodereports", "Tag": "tags"}

func patch(ctx context.Context, client *kubernetes.Clientset, path, patch string) error {
	return client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath("/api/v1/" + path).Body([]byte(patch)).Do(ctx).Error()
}

// expect holds an answer against the refusal that is wanted, empty for none.
func expect(t *testing.T, err error, refusal string) {
	t.Helper()
	switch {
	case refusal == "" && err != nil:
		t.Errorf("refused: %v", err)
	case refusal != "" && err == nil:
		t.Errorf("taken; want a refusal with %q", refusal)
	case refusal != "" && !strings.Contains(err.Error(), refusal):
		t.Errorf("refused with %v; want %q in it", err, refusal)
	}
}
