package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
	"github.com/weftnet/weft/registry/etcd/embedded"
)

// startInstalledEtcd runs the etcd that is installed, and returns its endpoint.
func startInstalledEtcd(t *testing.T) string {
	binary, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("needs etcd in the PATH (Debian: apt-get install etcd-server)")
	}
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return "http://" + l.Addr().String()
	}
	endpoint, peer := free(), free()
	cmd := exec.Command(binary, "--name", "n", "--data-dir", t.TempDir(), "--log-level", "error",
		"--heartbeat-interval", "20", "--election-timeout", "200",
		"--listen-client-urls", endpoint, "--advertise-client-urls", endpoint,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "n="+peer)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return endpoint
}

func startEmbeddedEtcd(t *testing.T) string {
	dir, err := os.MkdirTemp("", "weft-etcd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := "unix://" + filepath.Join(dir, "etcd.sock")
	server, err := embedded.Start(t.Context(), embedded.Config{Dir: filepath.Join(dir, "data"), ListenClient: []string{socket}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return socket
}

// An agent's user writes what is its own node's, and etcd refuses it everything
// else, whichever etcd it is.
func TestEtcdAccounts(t *testing.T) {
	for name, start := range map[string]func(*testing.T) string{"embedded": startEmbeddedEtcd, "installed": startInstalledEtcd} {
		t.Run(name, func(t *testing.T) { testEtcdAccounts(t, start(t)) })
	}
}

func testEtcdAccounts(t *testing.T, endpoint string) {
	ctx := t.Context()
	passwords := t.TempDir()
	password := func(user string) string {
		file := filepath.Join(passwords, user)
		if err := os.WriteFile(file, []byte("secret-of-"+user+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var login []string
	weft := func(code int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if got := run(ctx, slices.Concat([]string{"weft", "etcd"}, args, []string{"--etcd-endpoints", endpoint}, login), nil, &out, &out); got != code {
			t.Fatalf("weft etcd %q: exit code %d, not %d:\n%s", args, got, code, out.String())
		}
		return out.String()
	}
	open := func(user string) *etcd.Registry {
		t.Helper()
		config := etcd.Config{Endpoints: []string{endpoint}, Log: slog.New(slog.DiscardHandler)}
		if user != "" {
			config.Username, config.Password = user, "secret-of-"+user
		}
		r, err := etcd.Open(config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	raw := func(user string) *clientv3.Client {
		t.Helper()
		config := clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialTimeout: time.Minute}
		if user != "" {
			config.Username, config.Password = user, "secret-of-"+user
		}
		c, err := clientv3.New(config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	create := func(r registry.Registry, k *registry.Kind, o registry.Object) error {
		_, err := r.Create(ctx, k, o)
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	node := func(name, address string) *corev1.Node {
		n := &corev1.Node{}
		n.Name, n.Status.Addresses = name, []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		return n
	}

	before := open("")
	deadline := time.Now().Add(time.Minute)
	for before.Ping(ctx) != nil && time.Now().Before(deadline) {
	}
	config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: flannel.Name}}
	config.Name = api.DefaultName
	must(create(before, api.ClusterConfigKind, config))
	settings := &flannel.Config{Spec: json.RawMessage(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)}
	settings.Name = flannel.ConfigName
	must(create(before, flannel.ConfigKind, settings))
	must(create(before, api.Node, node("node2", "172.30.0.12")))

	if out := weft(exitFailed, "grant", "node", "node1"); !strings.Contains(out, "--address") {
		t.Errorf("a node of which nothing is known is granted a role: %s", out)
	}
	for _, wrong := range [][]string{{"grant"}, {"grant", "node"}, {"grant", "everybody"}, {"grant", "node", "a/b"}, {"grant", "node", "a:b"}, {"grant", "node", "Bad_Name"}, {"grant", "admin", "x"}, {"revoke", "node"}} {
		weft(exitFailed, wrong...)
	}
	printed := weft(0, "grant", "node", "node1", "--address", "172.30.0.11", "--print")
	for _, want := range []string{"etcdctl put '/coreos.com/network/weft/reservations/10.5.1.0-24' '{\"node\":\"node1\",\"publicIP\":\"172.30.0.11\"}'",
		"etcdctl role add weft-node-node1\n", "etcdctl role grant-permission weft-node-node1 read /weft/ --prefix\n",
		"etcdctl role grant-permission weft-node-node1 readwrite /weft/core/nodes/node1\n", "readwrite /coreos.com/network/subnets/10.5.1.0-24\n",
		"etcdctl user add weft-node-node1 --no-password\n", "etcdctl user grant-role weft-node-node1 weft-node-node1\n"} {
		if !strings.Contains(printed, want) {
			t.Errorf("printed no %q:\n%s", want, printed)
		}
	}
	if !strings.HasPrefix(printed, "# nothing is done yet; these commands of etcdctl do it:\n") {
		t.Errorf("it is not said that nothing is done:\n%s", printed)
	}
	if names, err := before.Accounts(ctx, ""); err != nil || len(names) > 0 {
		t.Fatalf("to print made %q, %v", names, err)
	}
	if out := weft(0, "list"); !strings.HasPrefix(out, "Authentication is off: ") || strings.Contains(out, "missing") {
		t.Errorf("of an etcd that asks nobody list says\n%s", out)
	}
	// Nobody is locked out: not root, nor who holds a lease.
	var leases []registry.Lease
	for _, name := range []string{api.NodeLease("node1"), api.RivalLease("node1"), api.NodeLease("node2"), api.ControllerLease, api.LivingControllerLease("c1")} {
		l, err := before.Acquire(ctx, name, "c1", time.Minute)
		must(err)
		leases = append(leases, l)
	}
	for _, also := range [][]string{nil, {"--print"}, {"--force"}} {
		if out := weft(exitFailed, append([]string{"enable-auth"}, also...)...); !strings.Contains(out, "nobody could log in as root") || !strings.Contains(out, "--password-file") {
			t.Errorf("enable-auth %q without a way in for root: %s", also, out)
		}
	}
	cutOff := func(wants ...string) {
		t.Helper()
		out := weft(exitFailed, "enable-auth", "--password-file", password("root"))
		for _, want := range append(wants, "--force") {
			if !strings.Contains(out, want) {
				t.Errorf("told no %q: %s", want, out)
			}
		}
		if on, err := before.Authenticates(ctx); on || err != nil {
			t.Fatalf("etcd asks: %v, %v", on, err)
		}
	}
	cutOff("the agents of node1, node2 and for the controllers c1,", "weft etcd grant node node1 node2 && weft etcd grant controller")
	if names, err := before.Accounts(ctx, ""); err != nil || len(names) > 0 {
		t.Fatalf("what was refused made %q, %v", names, err)
	}
	// One that was made without a password, as for a certificate, is given one.
	weft(0, "grant", "node", "node1", "--address", "172.30.0.11")
	for _, who := range [][]string{{"controller"}, {"admin"}, {"view"}, {"node", "node1", "--address", "172.30.0.11"}, {"node", "node2"}, {"node", "node3", "--address", "172.30.0.13"}} {
		user := "weft-" + strings.Join(who[:min(2, len(who))], "-")
		first := weft(0, append([]string{"grant", "--password-file", password(user)}, who...)...)
		if !strings.Contains(first, "etcdctl user add "+user) {
			t.Errorf("grant %q did\n%s", who, first)
		}
		if again := weft(0, append([]string{"grant"}, who...)...); !strings.Contains(again, "nothing is to be done") {
			t.Errorf("grant %q again did\n%s", who, again)
		}
	}
	// Who may do more by another role is told, and loses that.
	alone := raw("")
	for _, who := range []string{"view", "node node2"} {
		user := "weft-" + strings.ReplaceAll(who, " ", "-")
		_, err := alone.UserGrantRole(ctx, user, "weft-admin")
		must(err)
		if out := weft(1, "list"); !strings.Contains(out, user+"  has also the role weft-admin: weft etcd grant "+who+"\n") {
			t.Errorf("list:\n%s", out)
		}
		if out := weft(0, append([]string{"grant"}, strings.Fields(who)...)...); out != "# this is done, as by these commands of etcdctl:\netcdctl user revoke-role "+user+" weft-admin\n" {
			t.Errorf("grant %s did\n%s", who, out)
		}
		roles, err := alone.UserGet(ctx, user)
		must(err)
		if !slices.Equal(roles.Roles, []string{user}) {
			t.Errorf("%s has the roles %q", user, roles.Roles)
		}
	}
	weft(0, "revoke", "controller")
	cutOff("for the controllers c1,", "first with: weft etcd grant controller (")
	weft(0, "grant", "controller", "--password-file", password("weft-controller"))
	// Whether those that run log in is not known.
	warned := weft(0, "enable-auth", "--password-file", password("root"), "--print")
	if want := "warning: the agents of node1, node2 and the controllers c1 run, and etcd does not tell whether they log in"; !strings.Contains(warned, want) {
		t.Errorf("enable-auth said\n%s", warned)
	}
	for _, l := range leases {
		must(l.Release(ctx))
	}
	// A user root without a password, left from an attempt to have none.
	_, err := alone.UserAddWithOptions(ctx, "root", "", &clientv3.UserAddOptions{NoPassword: true})
	must(err)
	if out := weft(0, "enable-auth", "--password-file", password("root")); !strings.Contains(out, "etcdctl auth enable") {
		t.Errorf("enable-auth did\n%s", out)
	}
	if on, err := before.Authenticates(ctx); !on || err != nil {
		t.Errorf("etcd asks: %v, %v", on, err)
	}

	must(open("weft-node-node1").Ping(ctx))

	// What is left over is told, and taken away.
	login = []string{"--etcd-user", "root", "--etcd-password-file", password("root")}
	if out := weft(0, "enable-auth"); !strings.Contains(out, "nothing is to be done") {
		t.Errorf("enable-auth again did\n%s", out)
	}
	if out := weft(1, "list"); !strings.Contains(out, "weft-node-node3  there is no Node node3") {
		t.Errorf("list:\n%s", out)
	}
	weft(0, "revoke", "node", "node3")
	if out := weft(0, "revoke", "node", "node3"); !strings.Contains(out, "nothing is to be done") {
		t.Errorf("revoke again did\n%s", out)
	}
	if err := open("weft-node-node3").Ping(ctx); err == nil {
		t.Error("a user that was revoked is let in")
	}
	login = []string{"--etcd-user", "weft-node-node1", "--etcd-password-file", password("weft-node-node1")}
	if out := weft(exitFailed, "grant", "node", "node9", "--address", "172.30.0.19"); !strings.Contains(out, "may not do this") {
		t.Errorf("an agent makes reservations: %s", out)
	}
	if out := weft(exitFailed, "list"); !strings.Contains(out, "role root") {
		t.Errorf("an agent sees users: %s", out)
	}

	// What is node1's own.
	agent := open("weft-node-node1")
	must(create(agent, api.Node, node("node1", "172.30.0.11")))
	pods := &api.NodePods{}
	pods.Name = "node1"
	must(create(agent, api.NodePodsKind, pods))
	report := &api.NodeReport{}
	report.Name = "node1"
	must(create(agent, api.NodeReportKind, report))
	held, err := agent.Acquire(ctx, api.NodeLease("node1"), "agent", 10*time.Second)
	must(err)
	must(held.Release(ctx))
	_, err = registry.Modify(ctx, agent, flannel.LeaseKind, registry.Key{Name: "10.5.1.0-24"}, func(l *flannel.Lease) error {
		l.Spec = json.RawMessage(`{"PublicIP":"172.30.0.11","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:58:ac:1e:00:0b"}}`)
		return nil
	})
	must(err)
	must(agent.Delete(ctx, flannel.LeaseKind, registry.Key{Name: "10.5.1.0-24"}, ""))
	lease := &flannel.Lease{Spec: json.RawMessage(`{"PublicIP":"172.30.0.11","BackendType":"vxlan"}`)}
	lease.Name = "10.5.1.0-24"
	_, err = agent.Create(ctx, flannel.LeaseKind, lease, registry.WithTTL(time.Hour))
	must(err)

	// What is not: every key that there is, and some that might be.
	other, err := open("weft-node-node2").Acquire(ctx, api.NodeLease("node2"), "agent", 10*time.Second)
	must(err)
	defer other.Release(ctx)
	root, attacker := raw("root"), raw("weft-node-node1")
	all, err := root.Get(ctx, "", clientv3.WithPrefix())
	must(err)
	own := []string{"/weft/core/nodes/node1", "/weft/weft.network/nodepods/node1", "/weft/weft.network/nodereports/node1",
		"/weft/leases/node/node1", "/weft/leases/node/node1/rival", "/coreos.com/network/subnets/10.5.1.0-24"}
	keys := []string{"/", "/weft", "/weft/", "/weft/core/nodes/node10", "/weft/core/nodes/node1/", "/weft/core/nodes/", "/weft/leases/controller",
		"/weft/leases/node/node2", "/weft/leases/node/node10", "/weft/leases/node/node1/", "/weft/weft.network/nodepods/node2", "/weft/weft.network/nodereports/node2",
		"/weft/weft.network/clusterconfigs/default", "/weft/weft.network/domainnames/example.com", "/weft/network.openshift.io/hostsubnets/node1",
		"/weft/network.openshift.io/hostsubnets/node2", "/weft/network.openshift.io/clusternetworks/default", "/weft/networking.k8s.io/networkpolicies/default/x",
		"/weft/policy.networking.k8s.io/clusternetworkpolicies/x", "/weft/core/namespaces/default", "/weft/core/pods/default/x", "/coreos.com/network/config",
		"/coreos.com/network/subnets/10.5.2.0-24", "/coreos.com/network/subnets/10.5.1.0-25", "/coreos.com/network/subnets/10.5.1.0-24&fd00::-64",
		"/coreos.com/network/weft/reservations/10.5.1.0-24", "/coreos.com/network/weft/reservations/10.5.2.0-24"}
	for _, kv := range all.Kvs {
		keys = append(keys, string(kv.Key))
	}
	refused := 0
	for _, key := range keys {
		if slices.Contains(own, key) {
			continue
		}
		_, put := attacker.Put(ctx, key, "x")
		_, del := attacker.Delete(ctx, key)
		_, txn := attacker.Txn(ctx).Then(clientv3.OpPut(own[0], "{}"), clientv3.OpPut(key, "x")).Commit()
		for what, err := range map[string]error{"put": put, "delete": del, "put beside its own": txn} {
			if !errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
				t.Errorf("%s of %s by node1's agent: %v", what, key, err)
			}
			refused++
		}
	}
	t.Logf("%d writes refused", refused)
	for _, prefix := range []string{"", "/weft/", "/weft/core/nodes/node1", "/coreos.com/network/subnets/"} {
		if _, err := attacker.Delete(ctx, prefix, clientv3.WithPrefix()); !errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
			t.Errorf("delete all of %q: %v", prefix, err)
		}
	}
	found, err := root.Get(ctx, "/weft/leases/node/node2")
	must(err)
	theirs := clientv3.LeaseID(found.Kvs[0].Lease)
	if _, err := attacker.Revoke(ctx, theirs); !errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		t.Errorf("node1's agent ends node2's lease: %v", err)
	}
	if _, err := attacker.Put(ctx, own[0], "x", clientv3.WithLease(theirs)); !errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		t.Errorf("node1's agent hangs its key on node2's lease: %v", err)
	}
	if _, err := attacker.UserChangePassword(ctx, "root", "x"); !errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		t.Errorf("node1's agent changes root's password: %v", err)
	}
	if _, err := attacker.RoleGrantPermission(ctx, "weft-node-node1", "/", "0", clientv3.PermissionType(clientv3.PermReadWrite)); !errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		t.Errorf("node1's agent gives itself rights: %v", err)
	}

	// The others.
	if err := create(open("weft-view"), api.Node, node("x", "172.30.0.99")); err == nil || !strings.Contains(err.Error(), "may not do this") {
		t.Errorf("who may view creates: %v", err)
	}
	must(create(open("weft-controller"), api.Node, node("y", "172.30.0.98")))
	_, err = registry.Modify(ctx, open("weft-admin"), flannel.ConfigKind, registry.Key{Name: flannel.ConfigName}, func(c *flannel.Config) error {
		c.Spec = json.RawMessage(`{"Network":"10.5.0.0/16","SubnetLen":25,"Backend":{"Type":"vxlan"}}`)
		return nil
	})
	must(err)
	if _, err := raw("weft-controller").Put(ctx, "/coreos.com/network/config", "x"); !errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		t.Errorf("a controller writes flannel's configuration: %v", err)
	}
	if err := fmt.Sprint(before.Ping(ctx)); !strings.Contains(err, "name a user with --etcd-user") {
		t.Errorf("who is nobody is told: %s", err)
	}
}

// A node of which several subnets are reserved may write the lease of each, and all say the
// address that it has now: which one it takes, as one on which its pods live already, grant
// does not know.
func TestGrantOfSeveralReservations(t *testing.T) {
	ctx := t.Context()
	endpoint := startEmbeddedEtcd(t)
	r, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	create := func(k *registry.Kind, name string, o registry.Object) {
		t.Helper()
		o.SetName(name)
		if _, err := r.Create(ctx, k, o); err != nil {
			t.Fatal(err)
		}
	}
	create(api.ClusterConfigKind, api.DefaultName, &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: flannel.Name}})
	create(flannel.ConfigKind, flannel.ConfigName, &flannel.Config{Spec: json.RawMessage(`{"Network":"172.30.0.0/16","Backend":{"Type":"vxlan"}}`)})
	n := &corev1.Node{}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.1.5"}}
	n.Annotations = map[string]string{api.OnLinkAnnotation: "172.30.0.0/22"}
	create(api.Node, "node1", n)
	// Pods may live on this one, which is on the node's own network.
	create(flannel.ReservationKind, "172.30.2.0-24", &flannel.Reservation{Spec: flannel.ReservationSpec{Node: "node1", PublicIP: "172.30.1.4"}})
	create(flannel.ReservationKind, "172.30.8.0-24", &flannel.Reservation{Spec: flannel.ReservationSpec{Node: "node2", PublicIP: "172.30.1.6"}})

	grant := func(also ...string) string {
		t.Helper()
		var out bytes.Buffer
		if code := run(ctx, slices.Concat([]string{"weft", "etcd", "grant", "node", "node1", "--etcd-endpoints", endpoint}, also), nil, &out, &out); code != 0 {
			t.Fatalf("exit code %d:\n%s", code, out.String())
		}
		return out.String()
	}
	told := func(out string) string { return strings.Join(strings.SplitAfter(out, "\n")[1:], "") }
	printed := grant("--print")
	if did := grant(); told(did) != told(printed) {
		t.Errorf("grant did\n%sand before it printed\n%s", did, printed)
	}
	for _, want := range []string{"put '/coreos.com/network/weft/reservations/172.30.2.0-24' '{\"node\":\"node1\",\"publicIP\":\"172.30.1.5\"}'",
		"put '/coreos.com/network/weft/reservations/172.30.4.0-24' '{\"node\":\"node1\",\"publicIP\":\"172.30.1.5\"}'",
		"readwrite /coreos.com/network/subnets/172.30.2.0-24\n", "readwrite /coreos.com/network/subnets/172.30.4.0-24\n"} {
		if strings.Count(printed, want) != 1 {
			t.Errorf("printed %d times %q:\n%s", strings.Count(printed, want), want, printed)
		}
	}
	if strings.Contains(printed, "172.30.8.0-24") {
		t.Errorf("node1 gets what is node2's:\n%s", printed)
	}
	if again := grant(); !strings.Contains(again, "nothing is to be done") {
		t.Errorf("grant again did\n%s", again)
	}
}

// TestHasLeases has nodes hold leases of flannel's wherever it is asked for, used or loaded.
func TestHasLeases(t *testing.T) {
	const openshift = "openshift-networkpolicy"
	for _, c := range []struct {
		wanted, used string
		mix          []string
		want         bool
	}{
		{"flannel", "", nil, true},
		{openshift, "", nil, false},
		{"flannel-networkpolicy", openshift, []string{openshift}, true},
		{openshift, "flannel-networkpolicy", []string{"flannel-networkpolicy"}, true},
		{openshift, openshift, []string{"flannel-networkpolicy", openshift}, true},
		{openshift, openshift, []string{openshift}, false},
	} {
		config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: c.wanted}, Status: api.ClusterConfigStatus{Plugin: c.used, Plugins: c.mix}}
		if got := hasLeases(config); got != c.want {
			t.Errorf("%s asked for, %s used, of %v: %v", c.wanted, c.used, c.mix, got)
		}
	}
}
