package linux

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// digestType is the type of the piece of a rule's user data that holds a
// digest of its expressions. nft shows the comment only and keeps both.
const digestType userdata.Type = 'W'

// elementsPerMessage keeps a netlink attribute well below its 64 KiB.
const elementsPerMessage = 200

// bufferSize is more than a big transaction, or its acknowledgements, take in a
// socket, in bytes. It is a bound only: nothing is set aside.
const bufferSize = 64 << 20

// content is an nftables table in a form that can be compared: what Weft
// would write, or what the kernel holds. The structure is text.
type content struct {
	exists bool
	// flags are those of the table, of which Weft's have none: one with
	// NFT_TABLE_F_DORMANT is asked about no packet.
	flags        uint32
	chains, sets map[string]string
	elements     map[string]elements
}

func (c content) equal(o content) bool {
	return c.sameStructure(o) && maps.EqualFunc(c.elements, o.elements, maps.Equal[elements, elements])
}

func (c content) sameStructure(o content) bool {
	return c.exists == o.exists && c.flags == o.flags && maps.Equal(c.chains, o.chains) && maps.Equal(c.sets, o.sets)
}

// guards reports whether the table checks the sources of what comes from an
// interface.
func (c content) guards(name string) bool {
	_, ok := c.elements["guarded"][element{key: interfaceKey(name)}]
	return ok
}

func newContent() content {
	return content{chains: map[string]string{}, sets: map[string]string{}, elements: map[string]elements{}}
}

// content returns what the kernel holds once the ruleset is written.
func (r *ruleset) content() (content, error) {
	c := newContent()
	c.exists = !r.empty()
	for name, chain := range r.chains {
		var b strings.Builder
		if h := chain.hook; h != nil {
			fmt.Fprintf(&b, "%s %d %d %d\n", h.kind, h.number, h.priority, nftables.ChainPolicyAccept)
		}
		for _, rule := range chain.rules {
			data, err := rule.userData()
			if err != nil {
				return content{}, err
			}
			fmt.Fprintf(&b, "%x\n", data)
		}
		c.chains[name] = b.String()
	}
	for name, s := range r.sets {
		c.sets[name] = describeSet(s.to(r.table, name))
		c.elements[name] = s.elements
	}
	return c, nil
}

func describeSet(s *nftables.Set) string {
	data := uint32(0)
	if s.IsMap && !mapsToVerdicts(s) {
		data = s.DataType.Bytes
	}
	return fmt.Sprintf("interval=%t concat=%t map=%t data=%d timeout=%t", s.Interval, s.Concatenation, s.IsMap, data, s.HasTimeout)
}

// mapsToVerdicts tells maps to verdicts from maps to data. The library knows no
// name of a verdict map's type when it reads one.
func mapsToVerdicts(s *nftables.Set) bool {
	return s.IsMap && (s.DataType == nftables.TypeVerdict || s.DataType.Name == "")
}

// userData is the rule's comment and its digest, by which it is known again.
func (r filterRule) userData() ([]byte, error) {
	digest := sha256.New()
	for _, e := range r.exprs {
		b, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
		if err != nil {
			return nil, fmt.Errorf("write a rule's %T: %w", e, err)
		}
		digest.Write(b)
	}
	data := userdata.AppendString(nil, userdata.TypeComment, r.comment)
	return userdata.Append(data, digestType, digest.Sum(nil)[:8]), nil
}

// reading is called with the name of each table that is read. It is for tests.
var reading = func(string) {}

// readTable returns what one of Weft's tables holds; nothing where there is
// none. It opens its socket in the calling thread's network namespace, as does
// writeTable.
func readTable(name string) (content, error) {
	reading(name)
	c := newContent()
	conn, err := nftConn()
	if err != nil {
		return c, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return c, fmt.Errorf("list nftables tables: %w", noTables(err))
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == name })
	if i < 0 {
		return c, nil
	}
	c.exists, c.flags = true, tables[i].Flags
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return c, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != name {
			continue
		}
		var b strings.Builder
		if chain.Hooknum != nil {
			fmt.Fprintf(&b, "%s %d %d %d\n", chain.Type, *chain.Hooknum, *chain.Priority, *chain.Policy)
		}
		rules, err := conn.GetRules(chain.Table, chain)
		if err != nil {
			return c, fmt.Errorf("list rules of chain %s: %w", chain.Name, err)
		}
		for _, rule := range rules {
			fmt.Fprintf(&b, "%x\n", rule.UserData)
		}
		c.chains[chain.Name] = b.String()
	}
	sets, err := conn.GetSets(table(name))
	if err != nil {
		return c, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		c.sets[s.Name], c.elements[s.Name] = describeSet(s), elements{}
		if s.HasTimeout {
			continue
		}
		if c.elements[s.Name], _, err = readElements(s); err != nil {
			return c, err
		}
	}
	return c, nil
}

// verdictFrom reads the attributes of a verdict, NFTA_VERDICT_CODE and
// NFTA_VERDICT_CHAIN.
func verdictFrom(b []byte) (verdict, error) {
	var v verdict
	if len(b) == 0 {
		return v, nil
	}
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return v, err
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.NFTA_VERDICT_CODE:
			if len(a.Value) == 4 {
				v.kind = expr.VerdictKind(int32(bigEndian(a.Value)))
			}
		case unix.NFTA_VERDICT_CHAIN:
			v.chain = strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return v, nil
}

func bigEndian(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// writeTable makes the table hold the ruleset, in one transaction, and returns
// what it changed. Where the structure is the same, only elements are touched.
func writeTable(have content, want *ruleset) (content, []string, error) {
	next, err := want.content()
	if err != nil {
		return have, nil, err
	}
	if have.equal(next) {
		return next, nil, nil
	}
	conn, err := nftConn()
	if err != nil {
		return have, nil, err
	}
	var done []string
	if !have.sameStructure(next) {
		done = append(done, "write table inet "+want.table+" ("+structureChange(have, next)+")")
		// Adding first makes deleting succeed whether it is there or not.
		conn.AddTable(table(want.table))
		conn.DelTable(table(want.table))
		if !want.empty() {
			err = addTable(conn, want)
		}
	} else {
		done, err = changeElements(conn, have, want)
	}
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		return have, nil, fmt.Errorf("write nftables table inet %s: %w", want.table, err)
	}
	return next, done, nil
}

// structureChange says which chains and sets come, change and go.
func structureChange(have, next content) string {
	var names []string
	if have.flags != next.flags {
		names = append(names, fmt.Sprintf("flags %#x", have.flags))
	}
	for _, part := range []struct {
		kind       string
		have, next map[string]string
	}{{"chain", have.chains, next.chains}, {"set", have.sets, next.sets}} {
		for name, shape := range part.next {
			if old, ok := part.have[name]; !ok {
				names = append(names, "new "+part.kind+" "+name)
			} else if old != shape {
				names = append(names, "changed "+part.kind+" "+name)
			}
		}
		for name := range part.have {
			if _, ok := part.next[name]; !ok {
				names = append(names, "no "+part.kind+" "+name)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func addTable(conn *nftables.Conn, r *ruleset) error {
	t := conn.AddTable(table(r.table))
	chains := map[string]*nftables.Chain{}
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		c := &nftables.Chain{Table: t, Name: name}
		if h := r.chains[name].hook; h != nil {
			policy := nftables.ChainPolicyAccept
			c.Type, c.Hooknum, c.Priority, c.Policy = h.kind, &h.number, &h.priority, &policy
		}
		chains[name] = conn.AddChain(c)
	}
	for _, name := range slices.Sorted(maps.Keys(r.sets)) {
		s := r.sets[name].to(r.table, name)
		if err := conn.AddSet(s, nil); err != nil {
			return err
		}
		if err := addElements(conn, s, r.sets[name].elements, 0); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		for _, rule := range r.chains[name].rules {
			data, err := rule.userData()
			if err != nil {
				return err
			}
			conn.AddRule(&nftables.Rule{Table: t, Chain: chains[name], Exprs: rule.exprs, UserData: data})
		}
	}
	return nil
}

// changeElements brings elements up to date. A changed set of intervals is
// filled anew, because the kernel judges overlaps one interval's end at a
// time.
func changeElements(conn *nftables.Conn, have content, want *ruleset) ([]string, error) {
	var done []string
	for _, name := range slices.Sorted(maps.Keys(want.sets)) {
		s := want.sets[name]
		c := elementsChange(have.elements[name], s.elements)
		if c.empty() {
			continue
		}
		done = append(done, c.describe(name))
		if s.interval && !s.concat {
			c = setChange{add: s.elements, whole: true}
		}
		if err := c.write(conn, s.to(want.table, name)); err != nil {
			return nil, err
		}
	}
	return done, nil
}

// setChange is what becomes of a set's elements. What is in both parts gets
// another value. With whole set, nothing else than what is added stays.
type setChange struct {
	add, del elements
	whole    bool
}

func elementsChange(old, next elements) setChange {
	c := setChange{add: elements{}, del: elements{}}
	for e, v := range next {
		if o, ok := old[e]; !ok || o != v {
			c.add[e] = v
		}
	}
	for e, v := range old {
		if n, ok := next[e]; !ok || n != v {
			c.del[e] = v
		}
	}
	return c
}

func (c setChange) empty() bool { return !c.whole && len(c.add)+len(c.del) == 0 }

func (c setChange) describe(name string) string {
	if c.whole {
		return fmt.Sprintf("fill set %s anew: %d elements", name, len(c.add))
	}
	return fmt.Sprintf("change set %s: %d elements come, %d go", name, len(c.add), len(c.del))
}

func (c setChange) write(conn *nftables.Conn, s *nftables.Set) error {
	if c.whole {
		conn.FlushSet(s)
	}
	for chunk := range slices.Chunk(c.del.keys(), elementsPerMessage) {
		if err := conn.SetDeleteElements(s, c.del.list(chunk, 0)); err != nil {
			return err
		}
	}
	return addElements(conn, s, c.add, 0)
}

// addElements adds elements that end by themselves after some time, if it is
// not 0.
func addElements(conn *nftables.Conn, s *nftables.Set, e elements, timeout time.Duration) error {
	for chunk := range slices.Chunk(e.keys(), elementsPerMessage) {
		if err := conn.SetAddElements(s, e.list(chunk, timeout)); err != nil {
			return err
		}
	}
	return nil
}

// keys returns the keys in order.
func (e elements) keys() []element {
	return slices.SortedFunc(maps.Keys(e), func(a, b element) int {
		if c := strings.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end {
			return -1 // an interval ends before the next begins
		}
		return 1
	})
}

// list returns the elements of some keys as the library wants them.
func (e elements) list(keys []element, timeout time.Duration) []nftables.SetElement {
	list := make([]nftables.SetElement, len(keys))
	for i, k := range keys {
		list[i] = nftables.SetElement{Key: []byte(k.key), KeyEnd: []byte(k.last), IntervalEnd: k.end, Timeout: timeout}
		v := e[k]
		if v.verdict != (verdict{}) {
			list[i].VerdictData = &expr.Verdict{Kind: v.verdict.kind, Chain: v.verdict.chain}
		}
		if v.data != "" {
			list[i].Val = []byte(v.data)
		}
	}
	return list
}

func (s *set) to(inTable, name string) *nftables.Set {
	n := &nftables.Set{Table: table(inTable), Name: name, KeyType: s.key, Interval: s.interval, Concatenation: s.concat,
		IsMap: s.verdicts || s.data.Bytes > 0, DataType: s.data, Counter: s.counts, HasTimeout: s.timeout, Size: s.size}
	if s.dynamic {
		n.Dynamic, n.Size, n.Timeout = true, cmp.Or(s.size, droppedSize), droppedTimeout
	}
	if s.key == nftables.TypeIFName {
		n.KeyByteOrder = binaryutil.NativeEndian // for people: nft shows names then
	}
	if s.verdicts {
		n.DataType = nftables.TypeVerdict
	}
	return n
}

func table(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// noTables says what to do where the kernel does not know nftables.
func noTables(err error) error {
	for _, unknown := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, unknown) {
			return fmt.Errorf("%w: no pod is connected without a packet filter; load nftables (modprobe nf_tables), or boot a kernel that has it", err)
		}
	}
	return err
}

func nftConn() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(bufferSize), c.SetWriteBuffer(bufferSize), ownSockets.add(c))
	}))
	if err != nil {
		return nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	return conn, nil
}
