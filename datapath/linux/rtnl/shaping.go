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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
)

// Shaping is how fast packets may go by an endpoint's interface, in bytes per second; 0 is as
// fast as they can.
//
// Each way that has a limit has a detour: a device of the kind ifb that is there for this one
// interface and way alone. A filter at the interface, which takes all that comes in or goes out,
// sends packets there, where they wait in a token bucket (tc-tbf(8)), and then go on as if nothing
// had been. No endpoint gets at any of this. A bucket at the interface itself would be full again
// whenever the endpoint takes its own end down and up.
//
// All data planes of this kind make the same, so that one that takes over finds what it needs
// and no packet is lost that waits. Whose it is says the interface's group.
type Shaping struct {
	To, From uint64
	// Altered says that what there is is not what is made for this.
	Altered bool
}

const (
	// shapingNumber is the major number of the token buckets, and the preference of the
	// filters that send packets on detours: they tell these from others'. A kernel gives
	// majors from 0x8000 on by itself, and preferences from 0xc000 down.
	shapingNumber = 0x7765
	detourKind    = "ifb"
)

// way is one that packets go by an interface.
type way struct {
	// prefix comes before the interface's index in the name of the detour's device.
	prefix string
	// parent is where the filter is.
	parent uint32
	what   string
}

// The ways to an endpoint and from it.
var (
	toEndpoint   = way{"weft^", netlink.HANDLE_MIN_EGRESS, "goes out"}
	fromEndpoint = way{"weft~", netlink.HANDLE_MIN_INGRESS, "comes in"}
	ways         = [2]way{toEndpoint, fromEndpoint}
)

// device is the name of the device of an interface's detour.
func (w way) device(index int) string { return w.prefix + strconv.Itoa(index) }

// detours are the devices of an interface's detours, by their ways; nil where there is none.
type detours [len(ways)]netlink.Link

// What a token bucket is made of beside its rate. A sender gets back to its rate within a
// blink after it was silent, and a full queue delays no packet for long; but a segment of 64 KiB
// passes in one piece, and a queue of less has no room for what one connection sends at once.
const (
	leastBurst, mostBurst = 64 << 10, 64 << 20 // bytes
	burstsPerSecond       = 50
	leastQueue, mostQueue = 128 << 10, 16 << 20 // bytes
	queuesPerSecond       = 10
)

// bucket is a token bucket.
type bucket struct {
	rate uint64 // bytes per second
	// burst is what may go at once after a silence, and queue what may wait, in bytes.
	burst, queue uint32
}

func bucketFor(rate uint64) bucket {
	return bucket{rate: rate, burst: uint32(min(max(rate/burstsPerSecond, leastBurst), mostBurst)), queue: uint32(min(max(rate/queuesPerSecond, leastQueue), mostQueue))}
}

// is reports whether a kernel tells this of a bucket that it has. It tells the burst as the
// time that it takes, in units of 64 ns, and rounds.
func (b bucket) is(t *netlink.Tbf) bool {
	const unit = 64
	ticks := float64(b.burst) * 1e9 / float64(b.rate) / unit
	return t.Rate == b.rate && t.Peakrate == 0 && t.Limit == b.queue && (ticks >= 1<<32 || float64(t.Buffer) >= ticks*0.99-1 && float64(t.Buffer) <= ticks*1.01+1)
}

// readShaping adds what there is of Shaping to objects: on interfaces that lead to endpoints,
// and what is left of those that led to one.
func (k *Kernel) readShaping(o *Objects, links []netlink.Link) error {
	qdiscs, err := message.Dump(func() ([]netlink.Qdisc, error) { return k.QdiscList(nil) })
	if err != nil {
		return fmt.Errorf("list queueing disciplines: %w", err)
	}
	found := disciplinesOf(qdiscs)
	all, there := map[int]detours{}, map[int]bool{}
	for _, l := range links {
		there[l.Attrs().Index] = true
		if of, way, ok := detourOf(l); ok {
			d := all[of]
			d[way] = l
			all[of] = d
		}
	}
	for _, l := range links {
		index, group := l.Attrs().Index, l.Attrs().Group
		if _, _, is := detourOf(l); is {
			continue
		}
		if l.Type() == detourKind && found[index].bucket != nil {
			o.Shaping[index] = Shaping{Altered: true} // a detour that others have given another name
			continue
		}
		if group != k.stamps.Group && (group != 0 || all[index] == detours{}) {
			continue
		}
		s, err := k.shapingOf(index, found, all[index])
		if err != nil {
			return err
		}
		if s != (Shaping{}) {
			o.Shaping[index] = s
		}
	}
	for of := range all {
		if !there[of] {
			o.Shaping[of] = Shaping{Altered: true}
		}
	}
	return nil
}

// Unshaped returns those of some interfaces, of which it was told that something may have
// become of their Shaping, that have not what they should have. One that is gone, or down, needs
// nothing.
func (k *Kernel) Unshaped(told *News, wanted map[int]Shaping) ([]int, error) {
	suspects := map[int]bool{}
	if len(wanted) == 0 {
		return nil, nil
	}
	for index, gone := range told.Links {
		// A detour's that has another name by now says no longer whose it is.
		if l, err := k.LinkByIndex(index); !gone && err == nil && l.Type() == detourKind {
			if _, _, named := detourOf(l); !named {
				for of := range wanted {
					suspects[of] = true
				}
				break
			}
		}
	}
	for name := range told.Names {
		if of, _, ok := detourCalled(name); ok {
			suspects[of] = true
		}
	}
	for index := range told.Disciplines {
		suspects[index] = true
		if l, err := k.LinkByIndex(index); err == nil && wanted[index] == (Shaping{}) {
			of, _, _ := detourOf(l)
			suspects[of] = true
		}
	}
	maps.DeleteFunc(suspects, func(index int, _ bool) bool { return wanted[index] == (Shaping{}) })
	if len(suspects) == 0 {
		return nil, nil
	}
	qdiscs, err := message.Dump(func() ([]netlink.Qdisc, error) { return k.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	found := disciplinesOf(qdiscs)
	var unshaped []int
	for _, index := range slices.Sorted(maps.Keys(suspects)) {
		if l, err := k.LinkByIndex(index); err != nil || l.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		var there detours
		for i, w := range ways {
			if l, err := k.LinkByName(w.device(index)); err == nil && l.Type() == detourKind {
				there[i] = l
			}
		}
		s, err := k.shapingOf(index, found, there)
		if err != nil {
			return nil, err
		}
		if s != wanted[index] {
			unshaped = append(unshaped, index)
		}
	}
	return unshaped, nil
}

// disciplines are the queueing disciplines of one interface as far as they matter here.
type disciplines struct {
	// bucket is Weft's, and inner says that others have put something into it.
	bucket *netlink.Tbf
	inner  bool
	// hook is the kind of the one that has filters.
	hook string
}

// hookKind is the kind of discipline that filters both ways.
const hookKind = "clsact"

func disciplinesOf(all []netlink.Qdisc) map[int]disciplines {
	found := map[int]disciplines{}
	for _, q := range all {
		a := q.Attrs()
		d := found[a.LinkIndex]
		if t, ok := q.(*netlink.Tbf); ok && a.Parent == netlink.HANDLE_ROOT && a.Handle == netlink.MakeHandle(shapingNumber, 0) {
			d.bucket = t
		}
		d.inner = d.inner || a.Parent != netlink.HANDLE_ROOT && a.Parent>>16 == shapingNumber
		if a.Parent == netlink.HANDLE_CLSACT {
			d.hook = q.Type()
		}
		found[a.LinkIndex] = d
	}
	return found
}

// shapingOf returns what there is at an interface, where these are the devices of the names of its
// detours.
func (k *Kernel) shapingOf(index int, found map[int]disciplines, there detours) (Shaping, error) {
	var s Shaping
	for i, rate := range []*uint64{&s.To, &s.From} {
		var leads redirection
		if found[index].hook != "" {
			var err error
			if leads, err = k.redirection(index, ways[i]); err != nil {
				return Shaping{}, err
			}
		}
		detour := there[i]
		if detour == nil {
			s.Altered = s.Altered || leads != nil
			continue
		}
		a := detour.Attrs()
		d := found[a.Index]
		if d.bucket != nil {
			*rate = d.bucket.Rate
		}
		s.Altered = s.Altered || found[index].hook != hookKind || !leads[a.Index] || a.Flags&net.FlagUp == 0 ||
			d.bucket == nil || d.inner || !bucketFor(d.bucket.Rate).is(d.bucket)
	}
	return s, nil
}

// redirection are the indexes of the interfaces to which Weft's filter sends what goes one way, all
// of it; nil where there is no such filter. A kernel tells of a filter u32 also what those of other
// preferences and of the other way do.
type redirection map[int]bool

func (k *Kernel) redirection(index int, w way) (redirection, error) {
	filters, err := message.Dump(func() ([]netlink.Filter, error) { return k.FilterList(linkAt(index), w.parent) })
	if err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) { // EINVAL: nothing filters there
		return nil, fmt.Errorf("list the filters of interface %d: %w", index, err)
	}
	var leads redirection
	for _, f := range filters {
		if f.Attrs().Priority != shapingNumber {
			continue
		}
		if leads == nil {
			leads = redirection{}
		}
		u, ok := f.(*netlink.U32)
		if !ok || u.Protocol != unix.ETH_P_ALL || len(u.Actions) != 1 || u.Sel == nil || slices.ContainsFunc(u.Sel.Keys, func(k nl.TcU32Key) bool { return k.Mask != 0 }) {
			continue
		}
		if to, ok := u.Actions[0].(*netlink.MirredAction); ok && to.MirredAction == netlink.TCA_EGRESS_REDIR {
			leads[to.Ifindex] = true
		}
	}
	return leads, nil
}

// shape makes the Shaping of an interface, of which old is there, or nothing. A bucket that gets
// another rate goes on to forward what waits. To end all is possible also where the interface is
// gone.
func (k *Kernel) shape(index int, old *Shaping, s Shaping) error {
	var errs []error
	for i, rate := range []uint64{s.To, s.From} {
		switch {
		case rate > 0:
			errs = append(errs, k.detour(index, ways[i], rate, old != nil && old.Altered))
		case old != nil && (old.Altered || []uint64{old.To, old.From}[i] > 0):
			errs = append(errs, k.endDetour(index, ways[i]))
		}
	}
	return errors.Join(errs...)
}

// detour has what goes one way by an interface wait in a bucket, which is made anew where others
// have had a hand in something.
func (k *Kernel) detour(index int, w way, rate uint64, anew bool) error {
	name := w.device(index)
	l, err := k.LinkByName(name)
	if Gone(err) {
		if err := k.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}}); err != nil {
			return fmt.Errorf("add %s: %w", name, noModule(err, detourKind))
		}
		l, err = k.LinkByName(name)
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if l.Type() != detourKind {
		return fmt.Errorf("interface %s is in the way: Weft needs the name for a device of the kind %s; delete it (ip link del %s) or rename it", name, detourKind, name)
	}
	if anew {
		if err := k.QdiscDel(rootAt(l.Attrs().Index)); err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) { // EINVAL: there is none but the kernel's own
			return fmt.Errorf("delete the queueing discipline of %s: %w", name, err)
		}
	}
	if err := k.setBucket(l.Attrs().Index, bucketFor(rate)); err != nil {
		return err
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		// It has no address, and does not ask around for one.
		s, err := k.Settings(l.Attrs().Index)
		if err == nil {
			err = k.assign(s, distrust(false)...)
		}
		if err := errors.Join(err, k.LinkSetUp(l)); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	if err := k.hook(index); err != nil {
		return err
	}
	if leads, err := k.redirection(index, w); err != nil || leads[l.Attrs().Index] && !anew {
		return err
	} else if leads != nil {
		if err := k.removeRedirection(index, w); err != nil {
			return err
		}
	}
	if err := k.FilterAdd(&netlink.U32{FilterAttrs: redirectionAt(index, w), RedirIndex: l.Attrs().Index}); err != nil {
		return fmt.Errorf("send what %s at interface %d to %s: %w", w.what, index, name, lacks(err, "the filter u32 (cls_u32) or the action mirred (act_mirred)"))
	}
	return nil
}

func rootAt(index int) *netlink.Tbf {
	return &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT}}
}

func clsactAt(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

// hook has an interface filter both ways. A discipline of others' that does, and may have filters
// of theirs, does as well; one that filters what comes in alone, as the CNI plug-in bandwidth made
// them under agents before, gives way.
func (k *Kernel) hook(index int) error {
	failed := func(err error) error {
		return fmt.Errorf("filter what comes in and goes out at interface %d: %w", index, lacks(err, "the queueing discipline clsact (sch_ingress)"))
	}
	err := k.QdiscAdd(clsactAt(index))
	if err == nil || !errors.Is(err, unix.EEXIST) {
		if err != nil {
			return failed(err)
		}
		return nil
	}
	qdiscs, err := message.Dump(func() ([]netlink.Qdisc, error) { return k.QdiscList(linkAt(index)) })
	if err != nil {
		return fmt.Errorf("list queueing disciplines: %w", err)
	}
	if disciplinesOf(qdiscs)[index].hook == hookKind {
		return nil
	}
	if err := k.QdiscDel(&netlink.Ingress{QdiscAttrs: clsactAt(index).QdiscAttrs}); err != nil && !Gone(err) {
		return failed(err)
	}
	if err := k.QdiscAdd(clsactAt(index)); err != nil {
		return failed(err)
	}
	return nil
}

// endDetour has what goes one way by an interface go on at once. What waits is lost. Where the
// interface is a detour itself, it goes.
func (k *Kernel) endDetour(index int, w way) error {
	if l, err := k.LinkByIndex(index); err == nil && l.Type() == detourKind {
		return k.DeleteLink(l)
	}
	if err := k.removeRedirection(index, w); err != nil {
		return err
	}
	left := 0
	for _, w := range ways {
		filters, err := message.Dump(func() ([]netlink.Filter, error) { return k.FilterList(linkAt(index), w.parent) })
		if err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("list the filters of interface %d: %w", index, err)
		}
		left += len(filters)
	}
	if left == 0 {
		if err := k.QdiscDel(clsactAt(index)); err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("end the filters of interface %d: %w", index, err)
		}
	}
	l, err := k.LinkByName(w.device(index))
	if _, _, is := detourOf(l); err != nil || !is {
		return ignoreGone(err)
	}
	return k.DeleteLink(l)
}

// removeRedirection deletes the filter, if there is one.
func (k *Kernel) removeRedirection(index int, w way) error {
	at := redirectionAt(index, w)
	at.Protocol = 0 // of whichever others have made one
	err := k.FilterDel(&netlink.U32{FilterAttrs: at})
	if err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) { // EINVAL: nothing filters there
		return fmt.Errorf("delete the filter that sends what %s at interface %d elsewhere: %w", w.what, index, err)
	}
	return nil
}

func redirectionAt(index int, w way) netlink.FilterAttrs {
	return netlink.FilterAttrs{LinkIndex: index, Parent: w.parent, Priority: shapingNumber, Protocol: unix.ETH_P_ALL}
}

// setBucket makes a token bucket the queueing discipline of a detour, or gives the one that it is
// another rate. The library would give the burst as a time, of four seconds at most.
func (k *Kernel) setBucket(index int, b bucket) error {
	req := k.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Handle: netlink.MakeHandle(shapingNumber, 0), Parent: netlink.HANDLE_ROOT})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("tbf")))
	parameters := nl.TcTbfQopt{Limit: b.queue}
	parameters.Rate.Rate = uint32(min(b.rate, 1<<32-1))
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_TBF_PARMS, parameters.Serialize())
	options.AddRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(b.burst))
	if b.rate >= 1<<32 {
		options.AddRtAttr(nl.TCA_TBF_RATE64, nl.Uint64Attr(b.rate))
	}
	req.AddData(options)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("limit what goes out of interface %d to %d bytes per second: %w", index, b.rate, lacks(err, "the queueing discipline tbf (sch_tbf)"))
	}
	return nil
}

// detourOf returns the index of the interface that a device is a detour of, and of which way.
func detourOf(l netlink.Link) (index, way int, ok bool) {
	if l == nil || l.Type() != detourKind {
		return 0, 0, false
	}
	return detourCalled(l.Attrs().Name)
}

// detourCalled returns the index of the interface whose detour a device of a name would be.
func detourCalled(name string) (index, way int, ok bool) {
	for way, w := range ways {
		digits, ok := strings.CutPrefix(name, w.prefix)
		if index, err := strconv.Atoi(digits); ok && err == nil && index > 0 && w.device(index) == name {
			return index, way, true
		}
	}
	return 0, 0, false
}

// lacks says what a kernel has not that says it does not know a thing.
func lacks(err error, what string) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("this kernel has not got %s; load the module, or boot a kernel that has it (%s)", what, err)
	}
	return err
}

func ignoreGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}

// String is for people.
func (s Shaping) String() string {
	rate := func(r uint64) string {
		if r == 0 {
			return "no limit"
		}
		return strconv.FormatUint(r, 10) + " bytes/s"
	}
	return fmt.Sprintf("%s to and %s from it", rate(s.To), rate(s.From))
}
