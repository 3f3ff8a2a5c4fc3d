package lab

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/plugin/plugins"
)

func TestMachinesShareNoAddress(t *testing.T) {
	seen := map[netip.Addr]string{Outside: switchName, Outside6: switchName}
	macs := make(map[string]string)
	var machines []machine
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

// Whatever a lab begins with is valid.
func TestFirstObjectsAreValid(t *testing.T) {
	for _, name := range append(plugins.Names(), "") {
		for _, ipv6 := range []bool{false, true} {
			objects, err := (&Options{Plugin: name, IPv6: ipv6}).objects()
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
