package lab

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/internal/jsonfile"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/plugins"
)

func TestMachinesShareNoAddress(t *testing.T) {
	seen := make(map[netip.Addr]string)
	macs := make(map[string]string)
	machines := []machine{switchMachine}
	for i := range MaxControllers {
		machines = append(machines, controllerMachine(i+1))
	}
	for i := range MaxNodes {
		machines = append(machines, nodeMachine(i+1))
	}
	for _, m := range machines {
		for _, a := range m.addresses(true) {
			if other := seen[a]; other != "" {
				t.Errorf("%s and %s have %s", other, m.name, a)
			}
			seen[a] = m.name
			if !underlay4.Contains(a) && !underlay6.Contains(a) {
				t.Errorf("%s has %s, which is not on the underlay", m.name, a)
			}
		}
		if other := macs[m.mac().String()]; other != "" {
			t.Errorf("%s and %s have %s", other, m.name, m.mac())
		}
		macs[m.mac().String()] = m.name
	}
	if got := nodeMachine(1).addresses(true); got[0].String() != "172.30.0.11" || got[1].String() != "fd30::11" {
		t.Errorf("node1 has %v", got)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]Options{
		"1 to 250 nodes, not 251":                 {Nodes: 251},
		"1 to 250 nodes, not -1":                  {Nodes: -1},
		"1 to 8 controllers, not 9":               {Controllers: 9},
		"1280 to 65535, not 576":                  {MTU: 576},
		"too long a name":                         {Dir: "/tmp/" + strings.Repeat("x", 100)},
		"the lab needs /nowhere/weft":             {Weft: "/nowhere/weft"},
		`plug-in "nonsense" is unknown`:           {Plugin: "nonsense"},
		`data plane "nonsense" is unknown: there`: {DataPlane: "nonsense"},
		"with IPv6 is 1330 to 65535, not 1329":    {Plugin: "openshift-subnet", IPv6: true, MTU: 1329},
		"with IPv6 is 1350 to 65535, not 1349":    {Plugin: "flannel", IPv6: true, MTU: 1349},
	} {
		err := o.fill()
		if err == nil || o.Plugin+o.DataPlane != "" {
			_, err = o.objects()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: the error is %v, not %q", o, err, want)
		}
	}
}

// TestLeastMTU has links whose tunnel has just room for pods' IPv6, and narrower ones
// on which whoever makes the lab says how pods reach other nodes.
func TestLeastMTU(t *testing.T) {
	for _, o := range []Options{
		{IPv6: true, MTU: 1330},
		{Plugin: flannel.Name, IPv6: true, MTU: 1350},
		{MTU: 1280},
		{Plugin: flannel.Name, IPv6: true, MTU: 1280, Objects: []Object{{flannel.ConfigKind, &flannel.Config{}}}},
	} {
		if _, err := o.objects(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Whatever a lab begins with is valid.
func TestFirstObjectsAreValid(t *testing.T) {
	for _, name := range append(plugins.Names(), "") {
		for _, ipv6 := range []bool{false, true} {
			objects, err := (&Options{Plugin: name, IPv6: ipv6, DNS: true}).objects()
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects {
				if _, _, err := o.Kind.Admit(o.Object); err != nil {
					t.Errorf("plug-in %q, IPv6 %v: %v", name, ipv6, err)
				}
			}
		}
	}
}

func TestPodNamesStayInTheLab(t *testing.T) {
	for _, p := range []Pod{
		{Namespace: "default", Name: ".."}, {Namespace: "..", Name: "web"}, {Namespace: "default", Name: "a/b"},
		{Namespace: "default", Name: ""}, {Namespace: "default", Name: "web", Labels: map[string]string{"a b": "c"}},
		{Namespace: "default", Name: "web", Labels: map[string]string{"a": "c d"}},
		{Namespace: "default", Name: "web", Ports: []corev1.ContainerPort{{Name: "http", Protocol: "ICMP", ContainerPort: 80}}},
		{Namespace: "default", Name: "web", Ports: []corev1.ContainerPort{{Name: "http", Protocol: "TCP"}}},
		{Namespace: "default", Name: "web", Ports: []corev1.ContainerPort{{Protocol: "TCP", ContainerPort: 80}}},
		{Namespace: "default", Name: "web", Ports: []corev1.ContainerPort{{Name: "a", Protocol: "TCP", ContainerPort: 80}, {Name: "a", Protocol: "UDP", ContainerPort: 80}}},
		{Namespace: "default", Name: "web", Env: []corev1.EnvVar{{Name: "A-B", Value: "c"}}},
		{Namespace: "default", Name: "web", Env: []corev1.EnvVar{{Name: "", Value: "c"}}},
		{Namespace: "default", Name: "web", Env: []corev1.EnvVar{{Name: "A", Value: "b\x00"}}},
		{Namespace: "default", Name: "web", Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}}},
	} {
		if p.validate() == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
	if err := (Pod{Namespace: "shop", Name: "web-1", Labels: map[string]string{"weft.network/role": "db"},
		Ports: []corev1.ContainerPort{{Name: "http", Protocol: "TCP", ContainerPort: 80}, {Name: "http-alt", Protocol: "TCP", ContainerPort: 80}}}).validate(); err != nil {
		t.Error(err)
	}
}

// Of many who make a lab and remove it, one at a time has the lock, and who
// waited for a lock that was removed gets the next one.
func TestLockOutlivesItsFile(t *testing.T) {
	d := dir(filepath.Join(t.TempDir(), "lab"))
	var wg sync.WaitGroup
	var mu sync.Mutex // held by who has the lock
	for range 8 {
		wg.Go(func() {
			for range 20 {
				unlock, err := d.lock(alone, true)
				if err != nil {
					t.Error(err)
					return
				}
				if !mu.TryLock() {
					t.Error("two have the lock")
					unlock()
					return
				}
				mu.Unlock()
				if err := os.Remove(d.lockFile()); err != nil { // which lets the next one in
					t.Error(err)
				}
				os.Remove(string(d)) // fails when the next has made the file
				unlock()
			}
		})
	}
	wg.Wait()
	if _, err := d.lock(shared, false); !errors.Is(err, ErrNoLab) {
		t.Errorf("without a lab: %v", err)
	}
}

func TestDownTouchesNothingThatIsNoLab(t *testing.T) {
	d := t.TempDir()
	for _, name := range []string{"lock", "letter"} {
		if err := os.WriteFile(filepath.Join(d, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Down(d); err == nil || !strings.Contains(err.Error(), "is not a lab's") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(filepath.Join(d, "letter")); err != nil {
		t.Error(err)
	}
}

// A lab is found and removed with its mounts by a relative path, too.
func TestRelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	made := func() {
		t.Helper()
		for _, err := range []error{
			os.MkdirAll("lab/ns", 0o755), os.WriteFile("lab/lock", nil, 0o600),
			os.WriteFile("lab/lab.json", []byte(`{"complete": true}`), 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mount("tmpfs", "lab/ns", "tmpfs", 0, ""); err != nil {
			t.Skip("needs root: ", err)
		}
		t.Cleanup(func() { unix.Unmount("lab/ns", unix.MNT_DETACH) })
	}
	made()
	l, err := Open("./lab/")
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := filepath.Abs("lab"); string(l.dir) != want || l.Options().Dir != want {
		t.Errorf("the lab is in %s, and %s, not in %s", l.dir, l.Options().Dir, want)
	}
	if err := Down("./lab/"); err != nil {
		t.Error(err)
	}
	made()
	t.Setenv(DirVariable, "lab")
	if err := Down(""); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("lab"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// Who holds a pod may wait for its node's agent, so that who waits for the pod must
// not keep the agent from being started.
func TestAHeldPodDoesNotHoldItsNode(t *testing.T) {
	l := &Lab{dir: dir(t.TempDir())}
	pod := Pod{Namespace: "shop", Name: "web", Node: "node1"}
	for _, d := range []string{l.dir.daemons(), l.dir.pod(pod.Namespace, pod.Name)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(l.dir.lockFile(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unlockPod, err := l.lockPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	both.Go(func() {
		unlock, err := l.lockPodOfNode(pod)
		if err != nil {
			t.Error(err)
			return
		}
		unlock()
	})
	// However far that has come, the node is free again and again.
	for range 100 {
		unlock, err := l.dir.lockDaemon(pod.Node)
		if err != nil {
			t.Fatal(err)
		}
		unlock()
		time.Sleep(time.Millisecond)
	}
	unlockPod()
	both.Wait()
	if err := os.RemoveAll(l.dir.pod(pod.Namespace, pod.Name)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.lockPodOfNode(pod); err == nil {
		t.Error("a pod that is gone was locked")
	}
}

func TestStopNodeThatIsOff(t *testing.T) {
	l := &Lab{dir: dir(t.TempDir()), options: Options{Nodes: 3}}
	for _, d := range []string{l.dir.daemons(), l.dir.namespaces()} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{l.dir.lockFile(), l.dir.record("node3")} {
		if err := os.WriteFile(f, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.StopNode("node3"); err != nil {
		t.Errorf("a node whose agent is dead: %v", err)
	}
	if err := l.StopNode("node3"); !errors.Is(err, ErrOff) || err.Error() != "node3 is off already" {
		t.Errorf("a node that is off: %v", err)
	}
}

// What takes the rest of a pod away is named in the order in which it works.
func TestLeftNamesWhatIsDead(t *testing.T) {
	l := &Lab{dir: dir(t.TempDir()), options: Options{Nodes: 1, Controllers: 1}}
	if err := os.Mkdir(l.dir.daemons(), 0o755); err != nil {
		t.Fatal(err)
	}
	r := podRecord{Pod: Pod{Namespace: "shop", Name: "web", Node: "node1"}}
	runs := func(name string) {
		t.Helper()
		self, err := process.Identify(os.Getpid())
		if err == nil {
			err = jsonfile.Write(l.dir.record(name), self)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		if err := l.left(r, "its object", errors.New("no")); err.Error() != "pod shop/web: its object cannot be removed: no; take away what is left with: "+want {
			t.Errorf("it says %v, not %s", err, want)
		}
	}
	check("weft lab start-node controller1 && weft lab start-node node1 && weft lab delete web -n shop")
	runs("node1")
	check("weft lab start-node controller1 && weft lab delete web -n shop")
	runs("controller1")
	check("weft lab delete web -n shop")
	l.options.EtcdApart = true
	check("weft lab start-node etcd && weft lab delete web -n shop")
	runs(Etcd)
	check("weft lab delete web -n shop")
}

// What cannot be started, as nothing is called so, is answered by all that could.
func TestStartNamesAllDaemons(t *testing.T) {
	l := &Lab{dir: dir(t.TempDir()), options: Options{Nodes: 2, Controllers: 1, DNS: true}}
	err := l.Start(t.Context(), "nosuch")
	if err == nil || !strings.Contains(err.Error(), `"nosuch"`) {
		t.Fatalf("it says %v", err)
	}
	for _, name := range []string{switchName, OutsideNames, kubeletName, "controller1", "node1", NameServer("node1"), "node2", NameServer("node2")} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("it does not name %s: %v", name, err)
		}
	}
}
