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
// What goes to the endpoint waits in a token bucket (tc-tbf(8)) at the interface itself. A
// kernel delays nothing that comes in: what the endpoint sends takes a detour by a device of
// the kind ifb that is there for this one interface alone, waits in a bucket there, and goes
// on as if it had come in at the interface just now. No endpoint gets at any of this, as it is
// all on the node's side.
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
	// filter that sends packets on the detour: they tell these from others'. A kernel gives
	// majors from 0x8000 on by itself, and preferences from 0xc000 down.
	shapingNumber = 0x7765
	// detourPrefix comes before the index of an interface in the name of the detour's device.
	detourPrefix = "weft~"
	detourKind   = "ifb"
)

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
	return t.Rate == b.rate && t.Limit == b.queue && (ticks >= 1<<32 || float64(t.Buffer) >= ticks*0.99-1 && float64(t.Buffer) <= ticks*1.01+1)
}

// readShaping adds what there is of Shaping to objects: on interfaces that lead to endpoints,
// and what is left of those that led to one.
func (k *Kernel) readShaping(o *Objects, links []netlink.Link) error {
	qdiscs, err := message.Dump(func() ([]netlink.Qdisc, error) { return k.QdiscList(nil) })
	if err != nil {
		return fmt.Errorf("list queueing disciplines: %w", err)
	}
	found := disciplinesOf(qdiscs)
	detours, there := map[int]netlink.Link{}, map[int]bool{}
	for _, l := range links {
		there[l.Attrs().Index] = true
		if of, ok := detourOf(l); ok {
			detours[of] = l
		}
	}
	for _, l := range links {
		index, group := l.Attrs().Index, l.Attrs().Group
		if _, is := detourOf(l); is {
			continue
		}
		if l.Type() == detourKind && found[index].bucket != nil {
			o.Shaping[index] = Shaping{Altered: true} // a detour that others have given another name
			continue
		}
		if group != k.stamps.Group && (group != 0 || found[index].bucket == nil && detours[index] == nil) {
			continue
		}
		s, err := k.shapingOf(index, found, detours[index])
		if err != nil {
			return err
		}
		if s != (Shaping{}) {
			o.Shaping[index] = s
		}
	}
	for of := range detours {
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
			if _, named := detourOf(l); !named {
				for of := range wanted {
					suspects[of] = true
				}
				break
			}
		}
	}
	for name := range told.Names {
		if of, ok := DetourOf(name); ok {
			suspects[of] = true
		}
	}
	for index := range told.Disciplines {
		suspects[index] = true
		if l, err := k.LinkByIndex(index); err == nil && wanted[index] == (Shaping{}) {
			of, _ := detourOf(l)
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
		detour, err := k.LinkByName(detourPrefix + strconv.Itoa(index))
		if _, is := detourOf(detour); err != nil || !is {
			detour = nil
		}
		s, err := k.shapingOf(index, found, detour)
		if err != nil {
			return nil, err
		}
		if s != wanted[index] {
			unshaped = append(unshaped, index)
		}
	}
	return unshaped, nil
}

// disciplines are the queueing disciplines of one interface as far as they matter here: the
// bucket of Weft's, and whether there is one that filters what comes in.
type disciplines struct {
	bucket  *netlink.Tbf
	filters bool
}

func disciplinesOf(all []netlink.Qdisc) map[int]disciplines {
	found := map[int]disciplines{}
	for _, q := range all {
		a := q.Attrs()
		d := found[a.LinkIndex]
		if t, ok := q.(*netlink.Tbf); ok && a.Parent == netlink.HANDLE_ROOT && a.Handle == netlink.MakeHandle(shapingNumber, 0) {
			d.bucket = t
		}
		d.filters = d.filters || a.Parent == netlink.HANDLE_INGRESS
		found[a.LinkIndex] = d
	}
	return found
}

// shapingOf returns what there is at an interface, where detour is the device of that name, or nil.
func (k *Kernel) shapingOf(index int, found map[int]disciplines, detour netlink.Link) (Shaping, error) {
	var s Shaping
	read := func(t *netlink.Tbf) uint64 {
		s.Altered = s.Altered || t == nil || !bucketFor(t.Rate).is(t)
		if t == nil {
			return 0
		}
		return t.Rate
	}
	if t := found[index].bucket; t != nil {
		s.To = read(t)
	}
	leads := 0
	if found[index].filters {
		var err error
		if leads, err = k.redirection(index); err != nil {
			return Shaping{}, err
		}
	}
	switch {
	case detour == nil && leads == 0:
	case detour == nil:
		s.Altered = true
	default:
		a := detour.Attrs()
		s.From = read(found[a.Index].bucket)
		s.Altered = s.Altered || leads != a.Index || a.Flags&net.FlagUp == 0
	}
	return s, nil
}

// redirection returns the index of the interface to which Weft's filter sends what comes in at
// one, 0 where there is no such filter, and -1 where that interface is gone, and what comes in with
// it.
func (k *Kernel) redirection(index int) (int, error) {
	filters, err := message.Dump(func() ([]netlink.Filter, error) { return k.FilterList(linkAt(index), netlink.HANDLE_MIN_INGRESS) })
	if err != nil && !Gone(err) {
		return 0, fmt.Errorf("list the filters of interface %d: %w", index, err)
	}
	for _, f := range filters {
		if u, ok := f.(*netlink.U32); ok && u.Priority == shapingNumber && len(u.Actions) > 0 {
			if u.RedirIndex > 0 {
				return u.RedirIndex, nil
			}
			return -1, nil
		}
	}
	return 0, nil
}

// shape makes the Shaping of an interface, of which old is there, or nothing. A bucket that gets
// another rate goes on to forward what waits. To end all is possible also where the interface is
// gone.
func (k *Kernel) shape(index int, old *Shaping, s Shaping) error {
	var to, from error
	if s.To > 0 {
		to = k.setBucket(index, bucketFor(s.To))
	} else if old != nil && old.To > 0 {
		to = k.removeBucket(index)
	}
	if s.From > 0 {
		from = k.detour(index, s.From)
	} else if old != nil && (old.From > 0 || old.Altered) {
		from = k.endDetour(index)
	}
	return errors.Join(to, from)
}

// detour has what comes in at an interface wait in a bucket.
func (k *Kernel) detour(index int, rate uint64) error {
	name := detourPrefix + strconv.Itoa(index)
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
	// One that others have made, which may have filters of theirs, does as well.
	err = k.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if errors.Is(err, unix.EEXIST) {
		leads, err := k.redirection(index)
		if err != nil || leads == l.Attrs().Index {
			return err
		}
		if err := errors.Join(k.removeRedirection(index), k.succeed(index)); err != nil {
			return err
		}
	} else if err != nil {
		return fmt.Errorf("filter what comes in at interface %d: %w", index, lacks(err, "the queueing discipline clsact (sch_ingress)"))
	}
	if err := k.FilterAdd(&netlink.U32{FilterAttrs: redirectionAt(index), RedirIndex: l.Attrs().Index}); err != nil {
		return fmt.Errorf("send what comes in at interface %d to %s: %w", index, name, lacks(err, "the filter u32 (cls_u32) or the action mirred (act_mirred)"))
	}
	return nil
}

// bandwidthPrefix begins the names of the devices by which the CNI plug-in bandwidth limits what a
// pod sends, for agents before.
const bandwidthPrefix = "bwp"

// succeed takes away the filters of the CNI plug-in bandwidth, which would come first.
func (k *Kernel) succeed(index int) error {
	filters, err := message.Dump(func() ([]netlink.Filter, error) { return k.FilterList(linkAt(index), netlink.HANDLE_MIN_INGRESS) })
	if err != nil {
		return fmt.Errorf("list the filters of interface %d: %w", index, err)
	}
	for _, f := range filters {
		u, ok := f.(*netlink.U32)
		if !ok || u.RedirIndex <= 0 || u.Priority == shapingNumber {
			continue
		}
		l, err := k.LinkByIndex(u.RedirIndex)
		if err != nil || l.Type() != detourKind || !strings.HasPrefix(l.Attrs().Name, bandwidthPrefix) {
			continue
		}
		at := redirectionAt(index)
		at.Priority, at.Protocol = u.Priority, u.Protocol
		if err := k.FilterDel(&netlink.U32{FilterAttrs: at}); err != nil && !Gone(err) {
			return fmt.Errorf("delete the filter that sends what comes in at interface %d to %s: %w", index, l.Attrs().Name, err)
		}
	}
	return nil
}

// endDetour has what comes in at an interface go on at once. What waits is lost. Where the
// interface is a detour itself, it goes.
func (k *Kernel) endDetour(index int) error {
	if l, err := k.LinkByIndex(index); err == nil && l.Type() == detourKind {
		return k.DeleteLink(l)
	}
	if err := k.removeRedirection(index); err != nil {
		return err
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := message.Dump(func() ([]netlink.Filter, error) { return k.FilterList(linkAt(index), parent) })
		if err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("list the filters of interface %d: %w", index, err)
		}
		if len(filters) > 0 {
			return k.deleteDetour(index) // others filter there
		}
	}
	err := k.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("end the filters of interface %d: %w", index, err)
	}
	return k.deleteDetour(index)
}

func (k *Kernel) deleteDetour(index int) error {
	l, err := k.LinkByName(detourPrefix + strconv.Itoa(index))
	if _, is := detourOf(l); err != nil || !is {
		return ignoreGone(err)
	}
	return k.DeleteLink(l)
}

// removeRedirection deletes the filter, if there is one.
func (k *Kernel) removeRedirection(index int) error {
	err := k.FilterDel(&netlink.U32{FilterAttrs: redirectionAt(index)})
	if err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) { // EINVAL: nothing filters there
		return fmt.Errorf("delete the filter that sends what comes in at interface %d elsewhere: %w", index, err)
	}
	return nil
}

func redirectionAt(index int) netlink.FilterAttrs {
	return netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: shapingNumber, Protocol: unix.ETH_P_ALL}
}

// setBucket makes a token bucket the queueing discipline of an interface, or gives the one that
// it is another rate. The library would give the burst as a time, of four seconds at most.
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
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EINVAL) {
		// One of another kind has the number.
		if err = k.QdiscDel(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT}}); err == nil {
			_, err = req.Execute(unix.NETLINK_ROUTE, 0)
		}
	}
	if err != nil {
		return fmt.Errorf("limit what goes out of interface %d to %d bytes per second: %w", index, b.rate, lacks(err, "the queueing discipline tbf (sch_tbf)"))
	}
	return nil
}

// removeBucket gives an interface back the queueing discipline that it has by itself.
func (k *Kernel) removeBucket(index int) error {
	err := k.QdiscDel(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(shapingNumber, 0), Parent: netlink.HANDLE_ROOT}})
	if err != nil && !Gone(err) && !errors.Is(err, unix.EINVAL) { // EINVAL: another's is there
		return fmt.Errorf("end the limit of what goes out of interface %d: %w", index, err)
	}
	return nil
}

// detourOf returns the index of the interface that a device is the detour of.
func detourOf(l netlink.Link) (int, bool) {
	if l == nil || l.Type() != detourKind {
		return 0, false
	}
	return DetourOf(l.Attrs().Name)
}

// DetourOf returns the index of the interface whose detour a device of a name would be.
func DetourOf(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, detourPrefix)
	index, err := strconv.Atoi(digits)
	return index, ok && err == nil && index > 0 && detourPrefix+strconv.Itoa(index) == name
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
