package rtnl

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/podlink"
)

// Whose an interface is does not hang on its name, as anybody may change that: its alias says
// it, that of a pod's interface and that of each of Weft's own devices. Of one without it says
// so what was known of its index before. All else that Weft writes goes by names. So interfaces
// get back the names that they ought to have before anything else is looked at. One whose name
// another's interface has is as if it was missing until that is gone.
//
// Whoever is killed between two renames remembers nothing, and needs nothing but the aliases.

// deviceAlias begins the alias of one of Weft's devices. Its name follows, which tells it from
// those of other data planes.
const deviceAlias = "weft device "

// Whose returns the name that an interface ought to have by what its alias says, whatever it
// is called now. It is empty where that says nothing, or what no interface can be called: that
// is not Weft's work.
func Whose(l netlink.Link) string {
	if l.Type() == BridgeKind || l.Type() == VXLANKind {
		if name, ok := strings.CutPrefix(l.Attrs().Alias, deviceAlias); ok && canBeName(name) {
			return name
		}
		return ""
	}
	return podlink.Belongs(l)
}

// canBeName reports whether the kernel lets an interface be called so. It looks at single bytes,
// of which a0 is a space to it. A name with % is the form of one, which it fills in.
func canBeName(name string) bool {
	for i := range len(name) {
		if strings.IndexByte("/:% \t\n\v\f\r\xa0\x00", name[i]) >= 0 {
			return false
		}
	}
	return name != "" && len(name) < unix.IFNAMSIZ && name != "." && name != ".."
}

// Known are the names that interfaces had when they were known last, by their indexes.
type Known map[int]string

// Misnamed is an interface that cannot have the name that it ought to have.
type Misnamed struct {
	// Name is what it is called.
	Name  string
	Index int
	// Holder is the index of the interface that has the other name; 0 where none has.
	Holder int
	// Refused is what the kernel said to a renaming, of it or of a holder that is Weft's as well.
	// It is nil where another's interface has the other name.
	Refused error
	// Copy says that it claims to be what another one is.
	Copy bool
	// Alternative is what the interface is called that has the other name as an alternative
	// one; empty where none has.
	Alternative string
	link        netlink.Link
}

// Is reports whether an interface is the one that could not have its name, and no other that
// has got its index since.
func (m Misnamed) Is(l netlink.Link) bool {
	a, was := l.Attrs(), m.link.Attrs()
	return a.Index == was.Index && l.Type() == m.link.Type() && a.ParentIndex == was.ParentIndex && slices.Equal(a.HardwareAddr, was.HardwareAddr)
}

// Over reports whether it is over for the interface that ought to be called right, as far
// as the interfaces of which something was told have to do with it.
func (m Misnamed) Over(right string, told map[int]bool, find func(index int) (netlink.Link, error)) bool {
	if _, ok := told[m.Index]; ok {
		l, err := find(m.Index)
		if err != nil || m.Copy && Whose(l) != right || !m.Copy && l.Attrs().Name != m.Name {
			return true
		}
	}
	if _, ok := told[m.Holder]; ok && !m.Copy {
		l, err := find(m.Holder)
		return err != nil || !slices.Contains(namesOf(l), right)
	}
	return false
}

// Problem says what is wrong about the interface that ought to be called right, and what
// to do.
func (m Misnamed) Problem(right string) error {
	if m.Copy {
		return fmt.Errorf("%s has the same alias: delete it (ip link del %s), or take that from it (ip link set %s alias '')", m.Name, m.Name, m.Name)
	}
	if m.Refused != nil {
		return fmt.Errorf("it is called %s now, as the kernel refused to %w; that is tried again; where it goes on, do it by hand (ip link set OLD name NEW)", m.Name, m.Refused)
	}
	if m.Alternative != "" {
		return fmt.Errorf("it is called %s now, as its name is an alternative one of %s: take it from that (ip link property del dev %[2]s altname %[3]s)", m.Name, m.Alternative, right)
	}
	return fmt.Errorf("it is called %s now, as another's interface has its name: delete that (ip link del %s), or give it another name", m.Name, right)
}

// namesOf are all names of an interface, alternative ones (ip link property) too. No two have
// one in common.
func namesOf(l netlink.Link) []string { return append([]string{l.Attrs().Name}, l.Attrs().AltNames...) }

// right returns the name that an interface ought to have, where it is known. It is empty for
// what is another data plane's device now.
func (k *Kernel) right(l netlink.Link, known Known) string {
	name := Whose(l)
	switch {
	case name == "":
		return known[l.Attrs().Index]
	case l.Type() == BridgeKind && name != k.stamps.Bridge, l.Type() == VXLANKind && !strings.HasPrefix(name, k.stamps.TunnelPrefix):
		return ""
	}
	return name
}

// claim is how much speaks for it that an interface is what ought to have a name, where
// several may be. What was known before says most.
func (k *Kernel) claim(l netlink.Link, name string, known Known) int {
	switch device := name == k.stamps.Bridge || strings.HasPrefix(name, k.stamps.TunnelPrefix); {
	case known[l.Attrs().Index] == name:
		return 3
	case device && l.Attrs().Name == name:
		return 2
	}
	return podlink.Claim(l, name)
}

// rename is a step on the way to right names.
type rename struct {
	index int
	to    string
}

// renames returns how interfaces come to the names that they ought to have, where named has
// all names that there are. One whose name another's interface has does not come to it. Where
// it is in the way of another as well, it gets a name that is nobody's, which begins as aside
// says of it. After each of the steps the rest of them is what is left to do.
func renames(named map[string]int, right map[int]string, aside func(index int) string) (steps []rename) {
	named = maps.Clone(named)
	called := make(map[int]string, len(named))
	for name, index := range named {
		called[index] = name
	}
	move := func(index int, to string) {
		steps = append(steps, rename{index, to})
		delete(named, called[index])
		named[to], called[index] = index, to
	}
	wrong := slices.DeleteFunc(slices.Sorted(maps.Keys(right)), func(index int) bool { return called[index] == right[index] })
	for len(wrong) > 0 {
		before := len(steps)
		wrong = slices.DeleteFunc(wrong, func(index int) bool {
			_, taken := named[right[index]]
			if !taken {
				move(index, right[index])
			}
			return !taken
		})
		if len(steps) > before {
			continue
		}
		in := slices.IndexFunc(wrong, func(index int) bool { return slices.Contains(wrong, named[right[index]]) })
		if in < 0 {
			break
		}
		holder := named[right[wrong[in]]]
		move(holder, nobodys(named, aside(holder)))
	}
	return steps
}

// walk takes the steps that renames returns, and keeps named as they leave it. Where one fails
// it goes on as if that interface was another's, so that only who needs its name is held up.
// stuck are those that do not have their names in the end. Of each it has the refusal that kept
// it from that, or nil where another's interface has the name. changed says that a step was tried.
func walk(named map[string]int, right map[int]string, aside func(index int) string, do func(rename) error) (changed bool, stuck map[int]error, err error) {
	called := make(map[int]string, len(named))
	for name, index := range named {
		called[index] = name
	}
	movable, refused := maps.Clone(right), map[int]error{}
	var errs []error
	steps := renames(named, movable, aside)
	for len(steps) > 0 {
		step := steps[0]
		changed = true
		if err := do(step); err != nil {
			errs = append(errs, err)
			refused[step.index] = err
			delete(movable, step.index)
			steps = renames(named, movable, aside)
			continue
		}
		delete(named, called[step.index])
		named[step.to], called[step.index] = step.index, step.to
		steps = steps[1:]
	}
	stuck = map[int]error{}
	for index, name := range right {
		switch holder, taken := named[name]; {
		case holder == index:
		case taken && right[holder] == "":
			stuck[index] = nil
		case refused[index] != nil:
			stuck[index] = refused[index]
		default:
			stuck[index] = refused[holder]
		}
	}
	return changed, stuck, errors.Join(errs...)
}

// nobodys is a name that begins so and that nothing has.
func nobodys(named map[string]int, begin string) string {
	for n := 0; ; n++ {
		name := begin + strconv.Itoa(n)
		if _, taken := named[name]; !taken {
			return name
		}
	}
}

// podAside begins the names of pods' interfaces that are in the way of others. No pod's
// ought to have such a name.
const podAside = datapath.InterfacePrefix + "x"

// aside begins the names of Weft's devices that are in the way of others. No tunnel has such
// a name, so that a tunnel's device that is called so, and is none of the plan's, is deleted
// as any that the plan does not need. The packet filter goes on taking what comes out of it
// for what comes out of a tunnel.
func (k *Kernel) aside() string { return k.stamps.TunnelPrefix + "_" }

// PutBack gives interfaces the names that they ought to have, and takes them, and Weft's
// devices, out of others' bridges. It reports whether anything was changed, and those that
// cannot have their names, by these.
func (k *Kernel) PutBack(inv *Links, known Known) (changed bool, misnamed map[string]Misnamed, err error) {
	own, copies := podlink.Owners(inv.All, func(l netlink.Link) string { return k.right(l, known) },
		func(l netlink.Link, name string) int { return k.claim(l, name, known) })
	named, right := make(map[string]int, len(inv.All)), make(map[int]string, len(own))
	for _, l := range inv.All {
		named[l.Attrs().Name] = l.Attrs().Index
		for _, name := range l.Attrs().AltNames {
			named[name] = -l.Attrs().Index // which no step moves
		}
	}
	for name, l := range own {
		right[l.Attrs().Index] = name
	}
	aside := func(index int) string {
		if podlink.Belongs(inv.ByIndex(index)) != "" {
			return podAside
		}
		return k.aside()
	}
	changed, stuck, err := walk(named, right, aside, func(step rename) error { return k.rename(inv.ByIndex(step.index), step.to) })
	errs := []error{err}
	misnamed = map[string]Misnamed{}
	for _, l := range copies {
		name := k.right(l, known)
		misnamed[name] = Misnamed{Name: l.Attrs().Name, Index: l.Attrs().Index, Holder: own[name].Attrs().Index, Copy: true, link: l}
	}
	for _, index := range slices.Sorted(maps.Keys(stuck)) {
		name := right[index]
		l := own[name]
		m := Misnamed{Name: l.Attrs().Name, Index: index, Holder: named[name], Refused: stuck[index], link: l}
		if m.Holder < 0 {
			m.Holder = -m.Holder
			m.Alternative = inv.ByIndex(m.Holder).Attrs().Name
		}
		misnamed[name] = m
		// What comes out of a tunnel is guarded by the name of its device.
		if l.Type() == VXLANKind && l.Attrs().Flags&net.FlagUp != 0 {
			changed = true
			errs = append(errs, k.setDown(l))
		}
	}
	inv.Misnamed = misnamed
	devices := inv.OwnLinks()
	for _, l := range inv.All {
		if l.Attrs().MasterIndex == 0 || !slices.Contains(devices, l.Attrs().Index) && l.Attrs().Group != k.stamps.Group {
			continue
		}
		changed = true
		if err := k.LinkSetNoMaster(l); err != nil && !Gone(err) {
			errs = append(errs, fmt.Errorf("take %s out of the bridge that somebody put it into: %w", l.Attrs().Name, err))
			continue
		}
		k.record("take %s out of interface %d", l.Attrs().Name, l.Attrs().MasterIndex)
	}
	return changed, misnamed, errors.Join(errs...)
}

// rename gives an interface another name, unless it is gone.
func (k *Kernel) rename(l netlink.Link, name string) error {
	called := l.Attrs().Name
	if err := podlink.Rename(k.Handle, l, name); err != nil && !Gone(err) {
		return err
	}
	k.record("rename %s to %s", called, name)
	return nil
}
