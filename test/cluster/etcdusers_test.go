package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
)

// TestEtcdUsers has etcd ask who everybody is: agents that may write their own
// node's keys alone, started anew, run pods through their whole life, whichever
// the plug-in, and can write nothing of another node's.
func TestEtcdUsers(t *testing.T) {
	for _, plugin := range []string{"openshift-subnet", "openshift-networkpolicy", "flannel"} {
		t.Run(plugin, func(t *testing.T) { testEtcdUsers(t, plugin) })
	}
}

const allowHere = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow-here, namespace: default}
spec: {podSelector: {matchLabels: {app: there}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: here}}}]}]}
`

func testEtcdUsers(t *testing.T, plugin string) {
	logins := t.TempDir()
	c := up(t, lab.Options{Nodes: 2, Plugin: plugin, Credentials: logins})
	before := c.run("before", "node1")[0]

	// Existing nodes keep the subnets that they have.
	for who, file := range map[string]string{"node node1": "node1", "node node2": "node2", "controller": "controller1", "admin": "lab"} {
		words := strings.Fields(who)
		password := filepath.Join(t.TempDir(), file)
		if err := os.WriteFile(password, []byte("secret-of-"+file), 0o600); err != nil {
			t.Fatal(err)
		}
		c.weft("", append([]string{"etcd", "grant", "--password-file", password}, words...)...).want(t, 0, "etcdctl user add")
		login := "weft-" + strings.Join(words, "-") + ":secret-of-" + file
		if err := os.WriteFile(filepath.Join(logins, file), []byte(login), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.weft("", "etcd", "list").want(t, 0)
	root := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(root, []byte("secret-of-root"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.weft("", "etcd", "enable-auth", "--password-file", root).want(t, 0, "auth enable")

	for _, name := range []string{"controller1", "node1", "node2"} {
		if err := c.lab.Kill(name); err != nil {
			t.Fatal(err)
		}
		if err := c.lab.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	admin := []string{"--etcd-endpoints", c.lab.Endpoint(), "--etcd-user", "weft-admin:secret-of-lab"}
	weft := func(stdin string, args ...string) outcome { return c.weft(stdin, append(args, admin...)...) }

	here, there := c.policyPod("here", "node1", "here"), c.policyPod("there", "node2", "there")
	c.mustSee("pod/here", there, here)
	c.mustSee("pod/there", here, there)
	c.mustSee("pod/there", before, there)
	if plugin == "openshift-networkpolicy" {
		weft(fmt.Sprintf(isolateAll, "there"), "apply", "-f", "-").want(t, 0)
		c.mustNotReach("pod/here", there)
		weft(allowHere, "apply", "-f", "-").want(t, 0)
	}
	if err := c.lab.Delete(t.Context(), "", "here"); err != nil {
		t.Fatal(err)
	}
	again := c.policyPod("again", "node1", "here")
	c.mustSee("pod/again", there, again)
	c.eventually(func() error {
		if out := weft("", "status"); out.code != 0 {
			return fmt.Errorf("%s%s", out.stdout, out.stderr)
		}
		return nil
	})

	// Whoever gets hold of node1's password.
	r, err := etcd.Open(etcd.Config{Endpoints: []string{c.lab.Endpoint()}, Username: "weft-node-node1", Password: "secret-of-node1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	refused := 0
	for _, k := range append(slices.Clone(api.Kinds), flannel.ConfigKind, flannel.LeaseKind, flannel.ReservationKind) {
		objects, _, err := r.List(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			own := o.GetName() == "node1" && (k == api.Node || k == api.NodePodsKind || k == api.NodeReportKind)
			if l, isLease := o.(*flannel.Lease); isLease {
				own = strings.Contains(string(l.Spec), `"172.30.0.11"`)
			}
			if own || k == api.TagKind { // which all agents make for all
				continue
			}
			if err := r.Delete(t.Context(), k, registry.KeyOf(o), ""); err == nil || !strings.Contains(err.Error(), "may not do this") {
				t.Errorf("node1's agent deletes %s %s: %v", k.Singular, registry.KeyOf(o), err)
			}
			refused++
		}
	}
	if refused < 8 {
		t.Errorf("%d objects only", refused)
	}
	t.Logf("%d objects of others cannot be deleted", refused)
	if _, err := r.Acquire(t.Context(), api.NodeLease("node2"), "node2 at 172.30.0.12", 5e9); err == nil {
		t.Error("node1's agent has the lease of node2")
	}
}
