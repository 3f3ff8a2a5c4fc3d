package linux

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// named is a bench with the interfaces of pods a, b and c, whose aliases say whose they are.
type named struct {
	*bench
	plan *plan.Plan
	// names and indexes are those of the pods' interfaces.
	names   map[string]string
	indexes map[string]int
}

// aliasOf is what the alias of a pod's interface says.
func aliasOf(pod string) podlink.Stamp {
	return podlink.Stamp{ContainerID: pod, Interface: "eth0", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 1, 10 + pod[0] - 'a'})}, Network: plan.DefaultNetwork}
}

func newNamed(t *testing.T) *named {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip")
	}
	n := &named{bench: newBench(t), names: map[string]string{}, indexes: map[string]int{}}
	text := tunnelPlan
	for i, pod := range []string{"a", "b", "c"} {
		stamp := aliasOf(pod)
		name := podlink.HostName(pod, "eth0")
		n.do(func() error {
			if err := n.down(name, "pod-"+pod); err != nil {
				return err
			}
			l := mustLink(t, name)
			n.names[pod], n.indexes[pod] = name, l.Attrs().Index
			return netlink.LinkSetAlias(l, stamp.String())
		})
		text += fmt.Sprintf("endpoint %s network default addresses %s mac 0a:58:0a:01:01:%02x anti-spoof\nroute default %s/32 endpoint %s\n", name, stamp.Addresses[0], 10+i, stamp.Addresses[0], name)
	}
	n.plan = mustParse(t, text)
	n.mustApply(n.plan)
	return n
}

// run executes commands, in which A, B and C are the names of the pods' interfaces.
func (n *named) run(commands string) {
	n.t.Helper()
	names := strings.NewReplacer("ALIAS", aliasOf("a").String(), "A", n.names["a"], "B", n.names["b"], "C", n.names["c"])
	n.do(func() error {
		if out, err := exec.Command("sh", "-ec", names.Replace(commands)).CombinedOutput(); err != nil {
			return errors.New(string(out))
		}
		return nil
	})
}

// right checks that each of the pods has its interface, up and under its name, and its own
// address leads there.
func (n *named) right(pods ...string) {
	n.t.Helper()
	n.do(func() error {
		for _, pod := range pods {
			l, err := netlink.LinkByName(n.names[pod])
			if err != nil {
				return err
			}
			if l.Attrs().Index != n.indexes[pod] || l.Attrs().Flags&net.FlagUp == 0 || l.Attrs().Group != stamps.Default.Group {
				n.t.Errorf("pod %s has interface %d with flags %v and group %d; it had %d", pod, l.Attrs().Index, l.Attrs().Flags, l.Attrs().Group, n.indexes[pod])
			}
			dst := ipNet(netip.PrefixFrom(aliasOf(pod).Addresses[0], 32))
			routes, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
			if err != nil || len(routes) != 1 || routes[0].LinkIndex != n.indexes[pod] {
				n.t.Errorf("pod %s is behind interface %d, and its routes are %v, %v", pod, n.indexes[pod], routes, err)
			}
		}
		return nil
	})
}

// fresh puts another instance in the place of the data plane, as after a kill.
func (n *named) fresh() {
	n.t.Helper()
	n.Close()
	var err error
	if n.DataPlane, err = NewAt(n.path, Config{}); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { n.Close() })
}

// misnamings are what may be done to the names of pods' interfaces. said is what a user
// reads where the names cannot be put right until heal is done, and cut are the pods
// that have no network until then.
var misnamings = map[string]struct{ do, said, cut, heal string }{
	"one is renamed":                      {do: "ip link set A name stray"},
	"one is renamed as Weft's":            {do: "ip link set A name weft-zz"},
	"one is renamed as a pod's":           {do: "ip link set A name weft0123456789a"},
	"two have each other's names":         {do: "ip link set A name tmp; ip link set B name A; ip link set tmp name B"},
	"three have each other's names":       {do: "ip link set A name tmp; ip link set B name A; ip link set C name B; ip link set tmp name C"},
	"one has another's, that a third":     {do: "ip link set A name tmp; ip link set B name A"},
	"an agent was killed between":         {do: "ip link set A name weftx0; ip link set B name A; ip link set weftx0 name weftx1"},
	"two, while what has a name is taken": {do: "ip link add weftx0 type dummy 2>/dev/null || ip link add weftx0 type bridge; ip link set A name tmp; ip link set B name A; ip link set tmp name B"},
	"another's has the name": {do: "ip link set A name stray; ip link add A type bridge",
		said: "it is called stray now, as another's interface has its name: delete that (ip link del A)", cut: "a", heal: "ip link del A"},
	"another's has the name, and is renamed": {do: "ip link set A name stray; ip link add A type veth peer name x",
		said: "it is called stray now", cut: "a", heal: "ip link set A name mine"},
	"another's has the name of one, which has that of another": {do: "ip link set A name tmp; ip link set B name tmq; ip link set tmp name B; ip link add A type veth peer name x",
		said: "it is called weftx0 now", cut: "a", heal: "ip link del A"},
	"another's has the name as an alternative one": {do: "ip link set A name stray; ip link add other0 type veth peer name x; ip link set other0 up; ip link property add dev other0 altname A",
		said: "it is called stray now, as its name is an alternative one of other0: take it from that (ip link property del dev other0 altname A)", cut: "a", heal: "ip link property del dev other0 altname A"},
	"it has the name as an alternative one itself": {do: "ip link set A name stray; ip link property add dev stray altname A",
		said: "(ip link property del dev stray altname A)", cut: "a", heal: "ip link property del dev stray altname A"},
	"another's has its alias": {do: `ip link add copy type veth peer name x; ip link set copy alias "ALIAS"`,
		said: "copy has the same alias: delete it (ip link del copy), or take that from it", heal: "ip link del copy"},
	"an older one has its alias": {do: `ip link set pod alias "ALIAS"`,
		said: "pod has the same alias: delete it (ip link del pod), or take that from it", heal: "ip link set pod alias ''; ip link set pod name other"},
	"an older one has its alias, and it is renamed": {do: `ip link set pod alias "ALIAS"; ip link set A name stray`,
		said: "pod has the same alias", heal: "ip link set pod alias ''; ip link set pod name other"},
	"another's has its alias and its name": {do: `ip link set A name stray; ip link add A type veth peer name x; ip link set A alias "ALIAS"`,
		said: "it is called stray now", cut: "a", heal: "ip link del A"},
}

// TestPodsKeepTheirInterfacesWhateverTheseAreCalled changes the names of pods' interfaces
// while a data plane watches, while one that repairs by chance does not, and while none
// runs. What an interface's alias says is whose it is. Where another's has the name, the pod
// is cut off rather than given another's, it is said, others go on, and it heals.
func TestPodsKeepTheirInterfacesWhateverTheseAreCalled(t *testing.T) {
	all := []string{"a", "b", "c"}
	for what, c := range misnamings {
		t.Run(what, func(t *testing.T) {
			for how, repair := range map[string]func(n *named) error{
				"unwatched": func(n *named) error { _, err := n.Repair(t.Context()); return err },
				"killed":    func(n *named) error { n.fresh(); return n.Apply(t.Context(), n.plan) },
			} {
				t.Run(how, func(t *testing.T) {
					n := newNamed(t)
					n.run(c.do)
					err := repair(n)
					said := strings.ReplaceAll(c.said, "A", n.names["a"])
					if said == "" && err != nil || said != "" && (err == nil || !strings.Contains(err.Error(), said)) {
						t.Fatalf("it is said %v; expected %q", err, said)
					}
					if again := n.Apply(t.Context(), n.plan); fmt.Sprint(again) != fmt.Sprint(err) {
						t.Errorf("it is said %v, and then %v", err, again)
					}
					for _, pod := range all {
						if err := datapath.Concerning(err, n.names[pod]); (err != nil) != strings.Contains(c.cut, pod) {
							t.Errorf("to pod %s matters %v", pod, err)
						}
					}
					n.right(slices.DeleteFunc(slices.Clone(all), func(pod string) bool { return strings.Contains(c.cut, pod) })...)
					if c.heal != "" {
						n.run(c.heal)
						if _, err := n.Repair(t.Context()); err != nil {
							t.Errorf("healed, and it is said %v", err)
						}
					}
					n.right(all...)
					n.nothingToRepair()
				})
			}
			t.Run("watched", func(t *testing.T) {
				n := newNamed(t)
				found := n.watch()
				for _, commands := range []string{c.do, c.heal} {
					n.run(commands)
					untold := strings.HasSuffix(what, "has its alias") && commands == c.do || // which is nothing of Weft's
						strings.HasSuffix(what, "itself") && commands == c.heal // as the interface is down
					if commands != "" && !untold {
						t.Logf("it is told: %+v", <-found)
					}
					n.Repair(t.Context())
				}
				n.right(all...)
			})
		})
	}
}

// TestOfAPodThatIsGoneNothingIsSaid has a pod go whose interface could not have its name. Nothing
// is wrong for the others once its endpoint is gone, whether before its interface or with it. Who
// watches is told that the interface is gone.
func TestOfAPodThatIsGoneNothingIsSaid(t *testing.T) {
	for what, misnamed := range map[string]string{
		"another's has the name":  "ip link set A name stray; ip link add A type bridge",
		"another's has the alias": `ip link add copy type veth peer name x; ip link set copy alias "ALIAS"; ip link set A name stray; ip link set copy name A`,
	} {
		t.Run(what, func(t *testing.T) {
			n := newNamed(t)
			var without []string
			for line := range strings.Lines(n.plan.String()) {
				if !strings.Contains(line, n.names["a"]) {
					without = append(without, line)
				}
			}
			rest := mustParse(t, strings.Join(without, ""))
			n.run(misnamed)
			if _, err := n.Repair(t.Context()); err == nil {
				t.Fatal("nothing is said of the name")
			}
			if err := n.Apply(t.Context(), rest); err != nil {
				t.Errorf("the endpoint is gone, and it is said %v", err)
			}
			if err := n.Apply(t.Context(), n.plan); err == nil {
				t.Error("the endpoint is there again, and nothing is said of the name")
			}
			found := n.watch()
			if _, err := n.Repair(t.Context()); err == nil {
				t.Error("nothing is said of the name")
			}
			n.run("ip link del stray")
			told := <-found
			if _, err := n.Repair(t.Context()); strings.Contains(fmt.Sprint(err), "stray") {
				t.Errorf("the interface is gone, which was told as %q, and it is said %v", told.What, err)
			}
			if err := n.Apply(t.Context(), rest); err != nil {
				t.Errorf("interface and endpoint are gone, and it is said %v", err)
			}
			n.right("b", "c")
		})
	}
}

// index returns that of an interface, 0 for none.
func (n *named) index(name string) (index int) {
	n.do(func() error {
		if l, err := netlink.LinkByName(name); err == nil {
			index = l.Attrs().Index
		}
		return nil
	})
	return index
}

// TestDevicesGetTheirNamesBack has somebody rename what is no pod's, while a data plane runs
// and while none does. What was there stays, and nothing is made anew beside it.
func TestDevicesGetTheirNamesBack(t *testing.T) {
	n := newNamed(t)
	for _, name := range []string{stamps.Default.Bridge, vxlanDevice} {
		for _, to := range []string{"stray", "weft-zz", "weft1", "vxlan0"} {
			for how, repair := range map[string]func() error{
				"unwatched": func() error { _, err := n.Repair(t.Context()); return err },
				"killed":    func() error { n.fresh(); return n.Apply(t.Context(), n.plan) },
			} {
				before := n.index(name)
				n.run("ip link set " + name + " name " + to)
				if err := repair(); err != nil {
					t.Errorf("%s as %s, %s: %v", name, to, how, err)
				}
				if after := n.index(name); after != before {
					t.Errorf("%s was renamed to %s, %s, and another was made: interface %d, it was %d", name, to, how, after, before)
				}
				n.right(slices.Sorted(maps.Keys(n.names))...)
				n.nothingToRepair()
			}
		}
	}
}

// TestDevicesAreToldWhatTheyAre takes their aliases from Weft's devices, as those that an older
// agent made have none. They get them, and are the same. Who watches tells of it.
func TestDevicesAreToldWhatTheyAre(t *testing.T) {
	n := newNamed(t)
	for _, name := range []string{stamps.Default.Bridge, vxlanDevice} {
		before := n.index(name)
		n.run("ip link set " + name + " alias ''")
		n.fresh()
		n.mustApply(n.plan)
		found := n.watch()
		if _, err := n.Repair(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.run("ip link set " + name + " alias ''")
		if told := <-found; told.What != "interface "+name {
			t.Errorf("it is told %q", told.What)
		}
		if lines, err := n.Repair(t.Context()); err != nil || !slices.Contains(lines, fmt.Sprintf("set the alias %q of %s", "weft device "+name, name)) {
			t.Errorf("it is repaired by %q, %v", lines, err)
		}
		if after := n.index(name); after != before {
			t.Errorf("%s is interface %d now; it was %d", name, after, before)
		}
	}
}

// TestABridgeThatNothingTellsIsSaid renames the bridge while no data plane runs, and takes its
// alias from it. Another is made, and what is of no use is said.
func TestABridgeThatNothingTellsIsSaid(t *testing.T) {
	n := newNamed(t)
	n.run("ip link set " + stamps.Default.Bridge + " alias '' name weft-zz")
	n.fresh()
	n.mustApply(n.plan)
	said, err := n.Obstacles()
	if text := strings.Join(said, "\n"); err != nil || !strings.Contains(text, "interface weft-zz has the address 10.1.1.1, which weft0 alone should have") || !strings.Contains(text, "(ip link del weft-zz)") {
		t.Errorf("it is said %s, %v", text, err)
	}
	n.run("ip link del weft-zz")
	if _, err := n.Repair(t.Context()); err != nil {
		t.Error(err)
	}
	if said, err := n.Obstacles(); err != nil || len(said) > 0 {
		t.Errorf("it is said %q, %v", said, err)
	}
}

// TestWhatHasTheNameOfWeftsIsNotTakenForIt has somebody rename what is Weft's, or a pod's
// interface that says nothing, and give the name to one of his own. That is said until it is
// over, once each time, and his is left alone. Done as it is said, all is as it was. A device
// that is not needed meanwhile goes, whatever it is called.
func TestWhatHasTheNameOfWeftsIsNotTakenForIt(t *testing.T) {
	for _, name := range []string{stamps.Default.Bridge, vxlanDevice, "weftaaa"} {
		for _, kind := range []string{"bridge", "veth peer name x"} {
			for _, killed := range []bool{false, true} {
				if killed && name == "weftaaa" {
					continue // of which nobody knows anything then
				}
				t.Run(fmt.Sprintf("%s, a %s, killed: %t", name, kind, killed), func(t *testing.T) {
					n := newNamed(t)
					before := n.index(name)
					taken := "ip link set " + name + " name stray; ip link add " + name + " address 02:00:00:00:00:07 type " + kind + "; ip address add 192.0.2.7/32 dev " + name
					n.run(taken)
					theirs := n.index(name)
					for range 3 {
						if killed {
							n.fresh()
						}
						err := n.Apply(t.Context(), n.plan)
						if !killed {
							_, err = n.Repair(t.Context())
						}
						said := "it is called stray now, as another's interface has its name: delete that (ip link del " + name + "), or give it another name"
						if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), said) {
							t.Fatalf("it is said %v; expected %q alone", err, said)
						}
					}
					n.run("ip -o link show " + name + " | grep -q 02:00:00:00:00:07; ip address show dev " + name + " | grep -q 192.0.2.7; " +
						"! ip -o link show " + name + " | grep -q ,UP; test -z \"$(ip route show table all dev " + name + " | grep -v 'proto kernel')\"")
					if name != stamps.Default.Bridge { // by the others packets could come that nobody judges
						n.run("! ip -o link show stray | grep -q ,UP")
					}
					n.run("ip link del " + name)
					if _, err := n.Repair(t.Context()); err != nil {
						t.Errorf("it was done as said, and it is said %v", err)
					}
					if after := n.index(name); after != before || after == theirs {
						t.Errorf("%s is interface %d now; it was %d", name, after, before)
					}
					n.right("a", "b", "c")
					n.nothingToRepair()

					n.run(taken)
					if _, err := n.Repair(t.Context()); err == nil {
						t.Error("nothing is said of the name")
					}
					if err := n.Remove(t.Context()); err != nil {
						t.Error(err)
					}
					if left := n.index("stray"); (left != 0) != (name == "weftaaa") || n.index(name) == 0 {
						t.Errorf("all is removed, and there are interfaces %d and %d", left, n.index(name))
					}
				})
			}
		}
	}
}

// TestAnothersTunnelIsNeverTaken has a device of another program's that is to the letter as
// the tunnel's, while that is gone, and while it is there under another name.
func TestAnothersTunnelIsNeverTaken(t *testing.T) {
	n := newNamed(t)
	n.run("ip link del " + vxlanDevice + "; ip link add flannel.1 address 0a:58:ac:1e:00:02 type vxlan id 1 dstport 8472 local 172.30.0.2 nolearning udpcsum")
	for range 2 {
		n.fresh()
		if err := n.Apply(t.Context(), n.plan); err == nil || !strings.Contains(err.Error(), "interface flannel.1 is in the way: it receives VNI 1") {
			t.Errorf("it is said %v", err)
		}
	}
	before := n.index("flannel.1")
	n.run("ip link set flannel.1 name other")
	n.fresh()
	if err := n.Apply(t.Context(), n.plan); err == nil || n.index("other") != before {
		t.Errorf("the other's device is interface %d now; it was %d; it is said %v", n.index("other"), before, err)
	}
	n.run("ip link del other")
	if _, err := n.Repair(t.Context()); err != nil {
		t.Error(err)
	}
	n.nothingToRepair()
}

// TestDevicesAreWhoseTheyWereTakenBy has a data plane take over from another, and somebody
// rename the devices. They get the names that they have by the one that took them, also where
// it was killed between what a device says it is and its name. The other takes none back.
func TestDevicesAreWhoseTheyWereTakenBy(t *testing.T) {
	n := newNamed(t)
	names := map[string]int{OtherStamps.Bridge: n.index(stamps.Default.Bridge), OtherStamps.TunnelPrefix + "vxlan": n.index(vxlanDevice)}
	n.run("ip link set " + vxlanDevice + " alias 'weft device " + OtherStamps.TunnelPrefix + "vxlan'")
	next := func() *DataPlane {
		d, err := NewAt(n.path, Config{Stamps: OtherStamps})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	d := next()
	if err := errors.Join(d.Prepare(t.Context(), n.plan, n.DataPlane), d.Apply(t.Context(), n.plan)); err != nil {
		t.Fatal(err)
	}
	i := 0
	for name, index := range names {
		stray := fmt.Sprint("stray", i)
		i++
		n.run("ip link set " + name + " name " + stray)
		if err := n.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if n.index(stray) != index {
			t.Errorf("the one before took %s away", name)
		}
		d = next()
		if err := d.Apply(t.Context(), n.plan); err != nil {
			t.Error(err)
		}
		if is := n.index(name); is != index {
			t.Errorf("%s is interface %d; it was %d", name, is, index)
		}
	}
}

// TestAPodIsFoundWhatItsInterfaceIsCalledWhenItComes has somebody rename a pod's interface before
// the data plane knows of the pod. One that is made later under another name is told.
func TestAPodIsFoundWhatItsInterfaceIsCalledWhenItComes(t *testing.T) {
	for what, c := range map[string]struct {
		before, said, after string
		// untold says that the kernel tells nothing of that, as the interface is down.
		untold bool
	}{
		"it is renamed":                            {before: "ip link set A name stray"},
		"another's has its name":                   {before: "ip link set A name stray; ip link add A type veth peer name x", said: "it is called stray now", after: "ip link del A"},
		"another pod's has it":                     {before: "ip link set A name stray; ip link set B name A"},
		"it says later what it is":                 {before: "ip link set A alias '' name stray", said: "is missing", after: `ip link set stray alias "ALIAS"`, untold: true},
		"it says later what it is, and is renamed": {before: "ip link set A alias '' name stray", said: "is missing", after: `ip link set stray alias "ALIAS"; ip link set stray name other`},
		"it is there as it should":                 {},
	} {
		t.Run(what, func(t *testing.T) {
			n := newNamed(t)
			var without []string
			for line := range strings.Lines(n.plan.String()) {
				if !strings.Contains(line, n.names["a"]) {
					without = append(without, line)
				}
			}
			n.mustApply(mustParse(t, strings.Join(without, "")))
			found := n.watch()
			if _, err := n.Repair(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.run(c.before)
			if err := n.Apply(t.Context(), n.plan); (err != nil) != (c.said != "") || !strings.Contains(fmt.Sprint(err), c.said) {
				t.Fatalf("it is said %v; expected %q", err, c.said)
			}
			if c.said != "" {
				n.Repair(t.Context())
				for len(found) > 0 {
					<-found
				}
				if n.run(c.after); !c.untold {
					<-found
				}
				if _, err := n.Repair(t.Context()); err != nil {
					t.Errorf("healed, and it is said %v", err)
				}
			}
			n.right("a", "b", "c")
			n.nothingToRepair()
		})
	}
}

// TestWhoIsKilledBetweenTwoRenamesFindsAllAgain has two tunnels' devices, the bridge and a
// pod's interface called by each other's names in every way, and by what one of them is called
// while others change places: all that a data plane can leave that is killed while it gives
// them their names back. The next, which remembers nothing, gives each its own.
func TestWhoIsKilledBetweenTwoRenamesFindsAllAgain(t *testing.T) {
	n := newNamed(t)
	n.plan = mustParse(t, n.plan.String()+"tunnel other port 4789 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02\nnetwork default in other vni 0\n")
	n.mustApply(n.plan)
	names := []string{stamps.Default.Bridge, vxlanDevice, stamps.Default.TunnelPrefix + "other", n.names["a"]}
	indexes := map[string]int{}
	n.do(func() error {
		for _, name := range names {
			indexes[name] = mustLink(t, name).Attrs().Index
		}
		return nil
	})
	for _, aside := range []string{stamps.Default.TunnelPrefix + "_0", "weftx0"} {
		for called := range orders(append(slices.Clone(names), aside)) {
			if i := slices.Index(called, aside); i < len(names) && (names[i] == n.names["a"]) != (aside == "weftx0") {
				continue // which only others call so
			}
			n.do(func() error {
				var errs []error
				for i, name := range names {
					errs = append(errs, netlink.LinkSetName(mustLink(t, name), fmt.Sprint("tmp", i)))
				}
				for i := range names {
					errs = append(errs, netlink.LinkSetName(mustLink(t, fmt.Sprint("tmp", i)), called[i]))
				}
				return errors.Join(errs...)
			})
			n.fresh()
			if err := n.Apply(t.Context(), n.plan); err != nil {
				t.Fatalf("%q are called %q, and it is said %v", names, called[:len(names)], err)
			}
			n.do(func() error {
				for _, name := range names {
					if l, err := netlink.LinkByName(name); err != nil || l.Attrs().Index != indexes[name] {
						t.Fatalf("%q are called %q, and %s ends as %v, %v; it was interface %d", names, called[:len(names)], name, l, err, indexes[name])
					}
				}
				return nil
			})
			n.right("a", "b", "c")
		}
	}
	n.nothingToRepair()
}

// TestATunnelThatIsLeftAsideIsInNobodysWay kills a data plane while a tunnel's device is
// called as none, and has that tunnel be another meanwhile.
func TestATunnelThatIsLeftAsideIsInNobodysWay(t *testing.T) {
	n := newNamed(t)
	n.run("ip link set " + vxlanDevice + " name weft-_0")
	n.fresh()
	n.plan = mustParse(t, strings.Replace(n.plan.String(), "in vxlan vni 1", "in vxlan vni 7", 1))
	n.mustApply(n.plan)
	n.do(func() error {
		if l, err := netlink.LinkByName("weft-_0"); err == nil {
			t.Errorf("there is still %v", l)
		}
		return nil
	})
	n.right("a", "b", "c")
	n.nothingToRepair()
}

// orders yields all orders of names.
func orders(names []string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		var next func(at int) bool
		next = func(at int) bool {
			if at == len(names) {
				return yield(names)
			}
			for i := at; i < len(names); i++ {
				names[at], names[i] = names[i], names[at]
				if !next(at + 1) {
					return false
				}
				names[at], names[i] = names[i], names[at]
			}
			return true
		}
		next(0)
	}
}

// TestNobodyIsToldToDeleteWhatMayConnectTheNode has somebody give a gateway's address to
// interfaces of his own. Only the address is to go, and that is enough.
func TestNobodyIsToldToDeleteWhatMayConnectTheNode(t *testing.T) {
	n := newNamed(t)
	obstacles := func() (string, error) {
		_, err := n.Repair(t.Context())
		said, failure := n.Obstacles()
		return strings.Join(said, "\n"), errors.Join(err, failure)
	}
	n.run("ip link add port type veth peer name x; ip link add like address 0a:58:0a:01:01:01 type bridge; ip link set port master like; ip link add plain type bridge")
	for _, name := range []string{"eth0", "port", "like", "plain"} {
		for _, prefix := range []string{"10.1.1.1/32", "10.1.1.1/24"} {
			n.run("ip address add " + prefix + " dev " + name)
			text, err := obstacles()
			mend := "ip address del " + prefix + " dev " + name
			if err != nil || !strings.Contains(text, "take the address from it ("+mend+")") || strings.Contains(text, "ip link del") {
				t.Errorf("it is said %s, %v", text, err)
			}
			n.run(mend)
			if text, err := obstacles(); err != nil || text != "" {
				t.Errorf("after %s it is said %s, %v", mend, text, err)
			}
		}
	}
}

// TestATunnelInAnotherNamespaceIsNamed has somebody move the tunnel's device away, where the
// kernel lets no other take its place. It is said that it may be Weft's own, and where to
// look. Once it is gone, there is a tunnel again.
func TestATunnelInAnotherNamespaceIsNamed(t *testing.T) {
	n, elsewhere := newNamed(t), newBench(t)
	there, err := os.Open(elsewhere.path)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	n.do(func() error { return netlink.LinkSetNsFd(mustLink(t, vxlanDevice), int(there.Fd())) })
	for range 2 {
		if _, err := n.Repair(t.Context()); err == nil || !strings.Contains(err.Error(), "is in another one now receives VNI 1 on UDP port 8472, weft-vxlan itself if somebody moved it") {
			t.Errorf("it is said %v", err)
		}
	}
	elsewhere.do(func() error { return netlink.LinkDel(mustLink(t, vxlanDevice)) })
	if _, err := n.Repair(t.Context()); err != nil {
		t.Errorf("it is gone, and it is said %v", err)
	}
	n.nothingToRepair()
}
