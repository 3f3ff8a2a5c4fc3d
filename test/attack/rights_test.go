package attack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weftnet/weft/test/kubernetes/controlplane"
	"github.com/weftnet/weft/test/kubernetes/programs"
)

// attempt is a request to the API server that its sender has no right to. The
// cluster's administrator has: who sends the same, dry, is the control.
type attempt struct {
	name         string
	method, path string
	body         string
}

// label changes nothing that means anything: it is enough to see who may write.
const label = `{"metadata": {"labels": {"attack": "x"}}}`

const (
	ours       = "/apis/weft.network/v1/"
	openshifts = "/apis/network.openshift.io/v1/"
	policies   = "/apis/networking.k8s.io/v1/"
	cluster1   = "/apis/policy.networking.k8s.io/v1alpha2/"
	leases     = "/apis/coordination.k8s.io/v1/namespaces/weft-system/leases"
	roles      = "/apis/rbac.authorization.k8s.io/v1/"
	admission  = "/apis/admissionregistration.k8s.io/v1/"
	weftSystem = "/api/v1/namespaces/weft-system/"
)

// byAgent is what the account of the agent of node1 attempts.
var byAgent = []attempt{
	{"another node's annotation", http.MethodPatch, "/api/v1/nodes/node2", `{"metadata": {"annotations": {"weft.network/on-link": "0.0.0.0/0"}}}`},
	{"another node's flannel annotation", http.MethodPatch, "/api/v1/nodes/node2", `{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "172.30.0.11"}}}`},
	{"another node's conditions", http.MethodPatch, "/api/v1/nodes/node2/status", `{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True"}]}}`},
	{"its node's labels", http.MethodPatch, "/api/v1/nodes/node1", `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`},
	{"its node's taints", http.MethodPatch, "/api/v1/nodes/node1", `{"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}`},
	{"its node's pod range", http.MethodPatch, "/api/v1/nodes/node1", `{"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}`},
	{"its node's addresses", http.MethodPatch, "/api/v1/nodes/node1/status", `{"status": {"addresses": [{"type": "InternalIP", "address": "172.30.0.12"}]}}`},
	{"its node's readiness", http.MethodPatch, "/api/v1/nodes/node1/status", `{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`},
	{"others' annotation of its node", http.MethodPatch, "/api/v1/nodes/node1", `{"metadata": {"annotations": {"example.com/rack": "8"}}}`},
	{"a node more", http.MethodPost, "/api/v1/nodes", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node9"}}`},
	{"another node's end", http.MethodDelete, "/api/v1/nodes/node2", ""},
	{"its own node's end", http.MethodDelete, "/api/v1/nodes/node1", ""},
	{"a node's kubelet", http.MethodGet, "/api/v1/nodes/node2/proxy/configz", ""},
	{"another node's subnet", http.MethodPatch, openshifts + "hostsubnets/node2", label},
	{"its own subnet", http.MethodPatch, openshifts + "hostsubnets/node1", `{"subnet": "10.1.0.0/16"}`},
	{"a subnet more", http.MethodPost, openshifts + "hostsubnets", `{"apiVersion": "network.openshift.io/v1", "kind": "HostSubnet", "metadata": {"name": "node9"}, "host": "node9", "hostIP": "172.30.0.19", "subnet": "10.1.9.0/24"}`},
	{"the cluster's network", http.MethodPatch, openshifts + "clusternetworks/default", label},
	{"a namespace's network", http.MethodPatch, openshifts + "netnamespaces/default", label},
	{"another node's pods", http.MethodPatch, ours + "nodepods/node2", label},
	{"another node's pods anew", http.MethodPost, ours + "nodepods", `{"apiVersion": "weft.network/v1", "kind": "NodePods", "metadata": {"name": "node3"}, "pods": [{"tag": 10, "addresses": ["10.1.1.2"]}]}`},
	{"the end of another node's pods", http.MethodDelete, ours + "nodepods/node2", ""},
	{"another node's report", http.MethodPatch, ours + "nodereports/node2", label},
	{"another node's report anew", http.MethodPost, ours + "nodereports", `{"apiVersion": "weft.network/v1", "kind": "NodeReport", "metadata": {"name": "node3"}, "enforced": {"networkpolicies": "1"}}`},
	{"a tag's end", http.MethodDelete, ours + "tags/1000", ""},
	{"the configuration", http.MethodPatch, ours + "clusterconfigs/default", label},
	{"the configuration's end", http.MethodDelete, ours + "clusterconfigs/default", ""},
	{"the ledger of subnets", http.MethodPatch, ours + "clusterconfigs/default/status", `{"status": {}}`},
	{"a name's addresses", http.MethodPatch, ours + "domainnames/example.com", label},
	{"a policy", http.MethodPatch, policies + "namespaces/default/networkpolicies/shut", label},
	{"a policy's end", http.MethodDelete, policies + "namespaces/default/networkpolicies/shut", ""},
	{"a policy more", http.MethodPost, policies + "namespaces/default/networkpolicies", `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": {"podSelector": {}}}`},
	{"a cluster's policy", http.MethodPatch, cluster1 + "clusternetworkpolicies/shut", label},
	{"a cluster's policy's status", http.MethodPatch, cluster1 + "clusternetworkpolicies/shut/status", `{"status": {"conditions": []}}`},
	{"a namespace's labels", http.MethodPatch, "/api/v1/namespaces/tenant", label},
	{"a pod's labels", http.MethodPatch, "/api/v1/namespaces/tenant/pods/web", label},
	{"a pod's address", http.MethodPatch, "/api/v1/namespaces/tenant/pods/web/status", `{"status": {"podIP": "10.1.1.2", "podIPs": [{"ip": "10.1.1.2"}]}}`},
	{"a pod's end", http.MethodDelete, "/api/v1/namespaces/tenant/pods/web", ""},
	{"a pod more", http.MethodPost, weftSystem + "pods", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}`},
	{"a command in a pod", http.MethodPost, weftSystem + "pods/weft-agent-node2/exec?command=id&stdout=true", ""},
	{"the daemon itself", http.MethodPatch, "/apis/apps/v1/namespaces/weft-system/daemonsets/weft-agent", label},
	{"secrets", http.MethodGet, weftSystem + "secrets", ""},
	{"all secrets", http.MethodGet, "/api/v1/secrets", ""},
	{"the configuration of flannel", http.MethodPatch, "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg", label},
	{"another ConfigMap", http.MethodGet, "/api/v1/namespaces/kube-system/configmaps", ""},
	{"a token of the controller", http.MethodPost, weftSystem + "serviceaccounts/weft-controller/token", `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}`},
	{"a token of its own that is bound to nothing", http.MethodPost, weftSystem + "serviceaccounts/weft-agent/token", `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}`},
	{"more rights", http.MethodPatch, roles + "clusterroles/weft-agent", `{"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}`},
	{"another role", http.MethodPost, roles + "clusterrolebindings", `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "x"},
 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}, "subjects": [{"kind": "ServiceAccount", "name": "weft-agent", "namespace": "weft-system"}]}`},
	{"what binds it to its node", http.MethodDelete, admission + "validatingadmissionpolicies/weft-nodes", ""},
	{"what binds it to its node, loosened", http.MethodPatch, admission + "validatingadmissionpolicybindings/weft-node-objects", label},
	{"another node's lease", http.MethodPatch, leases + "/node--node2", `{"spec": {"holderIdentity": "x"}}`},
	{"another node's lease anew", http.MethodPost, leases, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "node--node3"}, "spec": {"holderIdentity": "x"}}`},
	{"a lease of an encoded name", http.MethodPost, leases, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "node--0x6e6f646532"}, "spec": {"holderIdentity": "x"}}`},
	{"a lease of a hashed name", http.MethodPost, leases, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "0h6e6f646532"}, "spec": {"holderIdentity": "x"}}`},
	{"the lease to lead", http.MethodPatch, leases + "/controller", `{"spec": {"holderIdentity": "x"}}`},
	{"the end of a lease", http.MethodDelete, leases + "/node--node2", ""},
	{"the kubelet's lease", http.MethodPatch, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node1", `{"spec": {"holderIdentity": "x"}}`},
	{"a definition of a kind", http.MethodPatch, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tags.weft.network", label},
}

// unbound is what a token of the agents' account attempts that is bound to no
// pod, as it was taken out of one that is gone.
var unbound = []attempt{
	{"a node's annotation", http.MethodPatch, "/api/v1/nodes/node1", `{"metadata": {"annotations": {"weft.network/on-link": "0.0.0.0/0"}}}`},
	{"a node's conditions", http.MethodPatch, "/api/v1/nodes/node1/status", `{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True"}]}}`},
	{"a node's pods", http.MethodPatch, ours + "nodepods/node1", label},
	{"a node's report", http.MethodPatch, ours + "nodereports/node1", label},
	{"a node's lease", http.MethodPatch, leases + "/node--node1", `{"spec": {"holderIdentity": "x"}}`},
}

// byTenant is what a user attempts who may edit what is in one namespace.
var byTenant = []attempt{
	{"the configuration", http.MethodPatch, ours + "clusterconfigs/default", label},
	{"the ledger of subnets", http.MethodPatch, ours + "clusterconfigs/default/status", `{"status": {}}`},
	{"a tag", http.MethodPatch, ours + "tags/1000", label},
	{"a tag more", http.MethodPost, ours + "tags", `{"apiVersion": "weft.network/v1", "kind": "Tag", "metadata": {"name": "1001"}, "spec": {"namespace": "tenant"}}`},
	{"a node's pods", http.MethodPatch, ours + "nodepods/node1", label},
	{"a node's report", http.MethodPatch, ours + "nodereports/node1", label},
	{"a name's addresses", http.MethodPatch, ours + "domainnames/example.com", label},
	{"a node's subnet", http.MethodPatch, openshifts + "hostsubnets/node1", label},
	{"the cluster's network", http.MethodPatch, openshifts + "clusternetworks/default", label},
	{"his namespace's network", http.MethodPatch, openshifts + "netnamespaces/default", label},
	{"an egress policy of his namespace", http.MethodPost, openshifts + "namespaces/tenant/egressnetworkpolicies", `{"apiVersion": "network.openshift.io/v1", "kind": "EgressNetworkPolicy", "metadata": {"name": "x"}, "spec": {"egress": []}}`},
	{"a cluster's policy", http.MethodPatch, cluster1 + "clusternetworkpolicies/shut", label},
	{"a cluster's policy's end", http.MethodDelete, cluster1 + "clusternetworkpolicies/shut", ""},
	{"another namespace's policy", http.MethodPatch, policies + "namespaces/default/networkpolicies/shut", label},
	{"a policy in another namespace", http.MethodPost, policies + "namespaces/default/networkpolicies", `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": {"podSelector": {}}}`},
	{"his namespace's labels", http.MethodPatch, "/api/v1/namespaces/tenant", label},
	{"another namespace's annotations", http.MethodPatch, "/api/v1/namespaces/default", `{"metadata": {"annotations": {"x": "y"}}}`},
	{"his pod's address", http.MethodPatch, "/api/v1/namespaces/tenant/pods/web/status", `{"status": {"podIP": "10.1.1.2", "podIPs": [{"ip": "10.1.1.2"}]}}`},
	{"a node's annotation", http.MethodPatch, "/api/v1/nodes/node1", `{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "172.30.0.12"}}}`},
	{"an agent's lease", http.MethodPatch, leases + "/node--node1", `{"spec": {"holderIdentity": "x"}}`},
	{"the lease to lead", http.MethodPatch, leases + "/controller", `{"spec": {"holderIdentity": "x"}}`},
	{"a command in an agent", http.MethodPost, weftSystem + "pods/weft-agent-node1/exec?command=id&stdout=true", ""},
	{"Weft's secrets", http.MethodGet, weftSystem + "secrets", ""},
	{"an agent's token", http.MethodPost, weftSystem + "serviceaccounts/weft-agent/token", `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}`},
	{"a pod of Weft's", http.MethodPost, weftSystem + "pods", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}`},
	{"the daemon", http.MethodPatch, "/apis/apps/v1/namespaces/weft-system/daemonsets/weft-agent", label},
	{"an agent's rights", http.MethodPost, roles + "namespaces/tenant/rolebindings", `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "x"},
 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "weft-admin"}, "subjects": [{"kind": "User", "name": "mallory"}]}`},
	{"what binds agents to their nodes", http.MethodDelete, admission + "validatingadmissionpolicies/weft-nodes", ""},
}

// TestRights has the accounts of an agent and of an ordinary user attempt what
// is not theirs, on a real API server with the manifests of package deploy.
func TestRights(t *testing.T) {
	t.Parallel()
	s := startAPI(t)
	agent := s.token(t, s.pod(t, "weft-agent-node1", "node1"))
	s.pod(t, "weft-agent-node2", "node2")
	// What is its own it may write, and admission begins a moment after it is
	// applied.
	s.allowed(t, agent, attempt{"its own node's annotation", http.MethodPatch, "/api/v1/nodes/node1", `{"metadata": {"annotations": {"weft.network/on-link": "172.30.0.0/16"}}}`})
	s.allowed(t, agent, attempt{"its own lease", http.MethodPatch, leases + "/node--node1", `{"spec": {"holderIdentity": "x"}}`})
	s.allowed(t, agent, attempt{"its own node's pods", http.MethodPatch, ours + "nodepods/node1", label})
	s.try(t, "an agent's account", agent, byAgent)
	s.try(t, "an agent's account without a node", s.token(t, nil), unbound)
	user := s.user(t, "mallory")
	s.allowed(t, user, attempt{"a policy of his own", http.MethodPost, policies + "namespaces/tenant/networkpolicies", `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "mine"}, "spec": {"podSelector": {}}}`})
	s.try(t, "a user with rights in one namespace", user, byTenant)
}

// apiServer is an API server with Weft's manifests.
type apiServer struct {
	*controlplane.ControlPlane
	admin      *rest.Config
	client     *kubernetes.Clientset
	kubeconfig string
	kubectl    string
}

func startAPI(t *testing.T) *apiServer {
	t.Helper()
	bin := programs.Need(t, string(controlplane.APIServer), "kubectl")
	if _, err := controlplane.Bin(controlplane.Etcd, controlplane.APIServer); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cp, err := controlplane.Start(ctx, controlplane.Config{Bin: bin, Dir: t.TempDir(), Components: []controlplane.Component{controlplane.Etcd, controlplane.APIServer}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	s := &apiServer{ControlPlane: cp, admin: cp.RESTConfig(), kubectl: filepath.Join(bin, "kubectl"), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if s.client, err = kubernetes.NewForConfig(s.admin); err != nil {
		t.Fatal(err)
	}
	config, err := cp.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	s.apply(t, "-f", "../../deploy/weft.yaml")
	s.run(t, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	eventually(t, func() error { // kinds are served a moment later
		_, err := s.command("", "get", "weft", "--all-namespaces").CombinedOutput()
		return err
	})
	s.run(t, apiObjects, "apply", "-f", "-")
	return s
}

func (s *apiServer) command(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(s.kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "HOME="+filepath.Dir(s.kubeconfig))
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

func (s *apiServer) run(t *testing.T, stdin string, args ...string) {
	t.Helper()
	eventually(t, func() error {
		out, err := s.command(stdin, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	})
}

func (s *apiServer) apply(t *testing.T, args ...string) {
	t.Helper()
	s.run(t, "", append([]string{"apply"}, args...)...)
}

// apiObjects are what the attempts are about.
const apiObjects = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: node1, annotations: {example.com/rack: "7"}}}
- {apiVersion: v1, kind: Node, metadata: {name: node2}}
- {apiVersion: v1, kind: Namespace, metadata: {name: tenant}}
- {apiVersion: v1, kind: Namespace, metadata: {name: kube-flannel}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: kube-flannel-cfg, namespace: kube-flannel}}
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: tenant}}
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: weft-system}}
- {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: tenant}, spec: {containers: [{name: web, image: web}]}}
# What the role edit is aggregated of, which the controller manager does.
- {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: edit, namespace: tenant},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:aggregate-to-edit"}, subjects: [{kind: User, name: mallory}]}
- {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: view, namespace: tenant},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:aggregate-to-view"}, subjects: [{kind: User, name: mallory}]}
- {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: weft-view, namespace: tenant},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: weft-view-objects}, subjects: [{kind: User, name: mallory}]}
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: shut, namespace: default}, spec: {podSelector: {}}}
- {apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: shut}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{name: a, action: Deny, from: [{namespaces: {}}]}]}}
- {apiVersion: weft.network/v1, kind: ClusterConfig, metadata: {name: default}, spec: {plugin: openshift-networkpolicy}}
- {apiVersion: weft.network/v1, kind: Tag, metadata: {name: "1000"}, spec: {namespace: tenant, labels: {app: web}}}
- {apiVersion: weft.network/v1, kind: NodePods, metadata: {name: node1}}
- {apiVersion: weft.network/v1, kind: NodePods, metadata: {name: node2}}
- {apiVersion: weft.network/v1, kind: NodeReport, metadata: {name: node1}}
- {apiVersion: weft.network/v1, kind: NodeReport, metadata: {name: node2}}
- {apiVersion: weft.network/v1, kind: DomainName, metadata: {name: example.com}}
- {apiVersion: network.openshift.io/v1, kind: ClusterNetwork, metadata: {name: default}, clusterNetworks: [{CIDR: 10.1.0.0/16, hostSubnetLength: 8}]}
- {apiVersion: network.openshift.io/v1, kind: NetNamespace, metadata: {name: default}, netname: default, netid: 0}
- {apiVersion: network.openshift.io/v1, kind: HostSubnet, metadata: {name: node1}, host: node1, hostIP: 172.30.0.11, subnet: 10.1.0.0/24}
- {apiVersion: network.openshift.io/v1, kind: HostSubnet, metadata: {name: node2}, host: node2, hostIP: 172.30.0.12, subnet: 10.1.1.0/24}
- {apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: node--node1, namespace: weft-system}, spec: {holderIdentity: a}}
- {apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: node--node2, namespace: weft-system}, spec: {holderIdentity: b}}
- {apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: controller, namespace: weft-system}, spec: {holderIdentity: c}}
- {apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: node1, namespace: kube-node-lease}, spec: {holderIdentity: node1}}
`

// pod makes a pod of the agents' account on a node.
func (s *apiServer) pod(t *testing.T, name, node string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "weft-agent",
		Containers: []corev1.Container{{Name: "agent", Image: "weft"}}}}
	pod, err := s.client.CoreV1().Pods("weft-system").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// token returns the configuration of one with a token of the agents' account,
// bound to a pod unless that is nil.
func (s *apiServer) token(t *testing.T, pod *corev1.Pod) *rest.Config {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	answer, err := s.client.CoreV1().ServiceAccounts("weft-system").CreateToken(t.Context(), "weft-agent", request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.admin)
	config.BearerToken = answer.Status.Token
	return config
}

// user returns the configuration of a user with a certificate of that name.
func (s *apiServer) user(t *testing.T, name string) *rest.Config {
	t.Helper()
	file, err := s.Kubeconfig(name)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// send sends a request and returns what the API server answers.
func (s *apiServer) send(t *testing.T, as *rest.Config, a attempt) (status int, answer string) {
	t.Helper()
	client, err := rest.HTTPClientFor(as)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	path := a.path
	if a.method != http.MethodGet {
		join := "?"
		if strings.Contains(path, "?") {
			join = "&"
		}
		path += join + "dryRun=All"
	}
	request, err := http.NewRequestWithContext(t.Context(), a.method, s.admin.Host+path, bytes.NewReader([]byte(a.body)))
	if err != nil {
		t.Fatal(err)
	}
	kind := "application/json"
	if a.method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	request.Header.Set("Content-Type", kind)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

// refusedBy says who refuses a request, "" if nobody does for want of a right.
func refusedBy(status int, answer string) string {
	switch {
	case status == http.StatusForbidden:
		return "authorization"
	case status == http.StatusUnprocessableEntity && strings.Contains(answer, "ValidatingAdmissionPolicy"):
		return "admission"
	}
	return ""
}

// allowed wants a request to be taken, soon.
func (s *apiServer) allowed(t *testing.T, as *rest.Config, a attempt) {
	t.Helper()
	eventually(t, func() error {
		if status, answer := s.send(t, as, a); status >= 300 {
			return fmt.Errorf("control: %s is not allowed: %d %s", a.name, status, answer)
		}
		return nil
	})
}

// try has one attempt all that he has no right to.
func (s *apiServer) try(t *testing.T, who string, as *rest.Config, attempts []attempt) {
	// A policy of admission holds a moment after it is applied.
	eventually(t, func() error {
		if status, answer := s.send(t, as, attempts[0]); refusedBy(status, answer) == "" {
			return fmt.Errorf("%s: %s is granted: %d %s", who, attempts[0].name, status, answer)
		}
		return nil
	})
	for _, a := range attempts {
		t.Run(who+"/"+a.name, func(t *testing.T) {
			// exec and the kubelet's proxy want more than a request to do what
			// they do; that they are not refused is enough.
			status, answer := s.send(t, s.admin, a)
			reaches := strings.Contains(a.path, "/exec") || strings.Contains(a.path, "/proxy/")
			if refusedBy(status, answer) != "" || status >= 300 && !reaches {
				t.Fatalf("control: the administrator may not: %d %s", status, answer)
			}
			status, answer = s.send(t, as, a)
			by := refusedBy(status, answer)
			countAttempt(who, by == "")
			if by == "" {
				t.Errorf("SUCCEEDED: %s %s: %d %s", a.method, a.path, status, answer)
			}
		})
	}
}
