package nft

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

	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/datapath/reconcile"
)

// digestType is the type of the piece of a rule's user data that holds a
// digest of its expressions. nft shows the comment only and keeps both.
const digestType userdata.Type = 'W'

// elementsPerMessage keeps a netlink attribute well below its 64 KiB.
const elementsPerMessage = 200

// BufferSize is more than a big transaction, or its acknowledgements, take in a
// socket, in bytes. It is a bound only: nothing is set aside.
const BufferSize = 64 << 20

const (
	// dynamicSize is how many elements rules add to a set at most, where it does not
	// say: one for each interface, and more than a node has.
	dynamicSize = 16384
	// dynamicTimeout is how long such an element is kept after the last packet;
	// whoever adds up what it counts reads it more often.
	dynamicTimeout = time.Hour
)

// Content is an nftables table in a form that can be compared: what Weft
// would write, or what the kernel holds. The structure is text.
type Content struct {
	exists bool
	// flags are those of the table, of which Weft's have none: one with
	// NFT_TABLE_F_DORMANT is asked about no packet.
	flags        uint32
	chains, sets map[string]string
	Elements     map[string]Elements
}

func (c Content) equal(o Content) bool {
	return c.sameStructure(o) && maps.EqualFunc(c.Elements, o.Elements, maps.Equal[Elements, Elements])
}

func (c Content) sameStructure(o Content) bool {
	return c.exists == o.exists && c.flags == o.flags && maps.Equal(c.chains, o.chains) && maps.Equal(c.sets, o.sets)
}

func newContent() Content {
	return Content{chains: map[string]string{}, sets: map[string]string{}, Elements: map[string]Elements{}}
}

// content returns what the kernel holds once the ruleset is written.
func (r *Table) content() (Content, error) {
	c := newContent()
	c.exists = !r.Empty()
	for name, chain := range r.Chains {
		var b strings.Builder
		if h := chain.Hook; h != nil {
			fmt.Fprintf(&b, "%s %d %d %d\n", h.Kind, h.Number, h.Priority, nftables.ChainPolicyAccept)
		}
		for _, rule := range chain.Rules {
			data, err := rule.userData()
			if err != nil {
				return Content{}, err
			}
			fmt.Fprintf(&b, "%x\n", data)
		}
		c.chains[name] = b.String()
	}
	for name, s := range r.Sets {
		c.sets[name] = describeSet(s.In(r.Name, name))
		c.Elements[name] = s.Elements
	}
	return c, nil
}

// describeSet says what tells sets of one name apart. The library does not read back of which
// parts a concatenated key is made: a set that gets another key, counters, or room for another number
// of elements, gets another name.
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
	for _, e := range r.Exprs {
		b, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
		if err != nil {
			return nil, fmt.Errorf("write a rule's %T: %w", e, err)
		}
		digest.Write(b)
	}
	data := userdata.AppendString(nil, userdata.TypeComment, r.Comment)
	return userdata.Append(data, digestType, digest.Sum(nil)[:8]), nil
}

// Read returns what one of Weft's tables holds; nothing where there is
// none. It opens its socket in the calling thread's network namespace, as does
// Write.
func Read(name string) (Content, error) {
	c := newContent()
	conn, err := Open()
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
	sets, err := conn.GetSets(InetTable(name))
	if err != nil {
		return c, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		c.sets[s.Name], c.Elements[s.Name] = describeSet(s), Elements{}
		if s.HasTimeout {
			continue
		}
		if c.Elements[s.Name], _, err = ReadElements(s); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Missing returns which of these tables are not there. It opens its socket as Read does.
func Missing(names ...string) ([]string, error) {
	conn, err := Open()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", noTables(err))
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name })
	}), nil
}

// Write makes the table hold the ruleset, in one transaction with edits of other tables,
// and returns what it changed. Where the structure is the same, only elements are touched.
// Where the sets are, and what packets meet first, chains are written that differ: sets keep
// what rules have put into them.
func Write(have Content, want *Table, also ...Edit) (Content, []string, error) {
	next, err := want.content()
	if err != nil {
		return have, nil, err
	}
	if have.equal(next) {
		done, err := Apply(also...)
		return next, done, err
	}
	if have.sameStructure(next) {
		done, err := Apply(append([]Edit{{Table: want, Changes: difference(have, want)}}, also...)...)
		if err != nil {
			return have, nil, err
		}
		return next, done, nil
	}
	what := structureChange(have, next)
	if have.sameSets(next) {
		var done []string
		err := Transaction(want.Name, func(conn *nftables.Conn) (err error) {
			if err := rewrite(conn, have, next, want); err != nil {
				return err
			}
			done, err = write(conn, also)
			return err
		})
		if err == nil {
			return next, append([]string{"write table inet " + want.Name + " (" + what + ")"}, done...), nil
		}
		// It may be another table by now than the one that was read.
		what += fmt.Sprintf("; whole, as it could not be changed: %v", err)
	}
	var done []string
	err = Transaction(want.Name, func(conn *nftables.Conn) error {
		// Adding first makes deleting succeed whether it is there or not.
		conn.AddTable(InetTable(want.Name))
		conn.DelTable(InetTable(want.Name))
		if !want.Empty() {
			if err := addTable(conn, want); err != nil {
				return err
			}
		}
		done, err = write(conn, also)
		return err
	})
	if err != nil {
		return have, nil, err
	}
	return next, append([]string{"write table inet " + want.Name + " (" + what + ")"}, done...), nil
}

// Anew says for people that a table is written whole, as its structure is not that of what the
// kernel has.
func Anew(have Content, want *Table) string {
	next, err := want.content()
	if err != nil {
		return fmt.Sprintf("write table inet %s anew: %v", want.Name, err)
	}
	return fmt.Sprintf("write table inet %s anew (%s)", want.Name, structureChange(have, next))
}

// hookOf is the part of a chain's text that says where packets meet it; empty where they do not.
func hookOf(chain string) string {
	hook, _, _ := strings.Cut(chain, "\n")
	if !strings.Contains(hook, " ") { // a rule
		return ""
	}
	return hook
}

// sameSets reports whether two tables are alike but for rules, and for chains that rules
// and elements alone lead to.
func (c Content) sameSets(o Content) bool {
	if c.exists != o.exists || c.flags != o.flags || !maps.Equal(c.sets, o.sets) {
		return false
	}
	for _, one := range []struct{ these, those map[string]string }{{c.chains, o.chains}, {o.chains, c.chains}} {
		for name, chain := range one.these {
			if hookOf(chain) != hookOf(one.those[name]) {
				return false
			}
		}
	}
	return true
}

// rewrite adds, to a transaction, what makes one table of another that is alike but for
// rules and elements.
func rewrite(conn *nftables.Conn, have, next Content, want *Table) error {
	chains := map[string]*nftables.Chain{}
	for _, name := range slices.Sorted(maps.Keys(next.chains)) {
		before, there := have.chains[name]
		if there && before == next.chains[name] {
			continue
		}
		chains[name] = &nftables.Chain{Table: InetTable(want.Name), Name: name}
		if there {
			conn.FlushChain(chains[name])
		} else {
			conn.AddChain(chains[name])
		}
	}
	changes := difference(have, want)
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if err := changes[name].write(conn, want.Sets[name].In(want.Name, name)); err != nil {
			return fmt.Errorf("change set %s: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if err := addRules(conn, chains[name], want.Chains[name]); err != nil {
			return fmt.Errorf("write chain %s: %w", name, err)
		}
	}
	var gone []*nftables.Chain
	for _, name := range slices.Sorted(maps.Keys(have.chains)) {
		if _, stays := next.chains[name]; !stays {
			c := &nftables.Chain{Table: InetTable(want.Name), Name: name}
			conn.FlushChain(c)
			gone = append(gone, c)
		}
	}
	for _, c := range gone {
		conn.DelChain(c) // to none of which a rule leads any more
	}
	return nil
}

// Difference is what becomes of the elements of each set that differs from what the table
// should hold. It is to be had where the two are alike but for elements.
func Difference(have Content, want *Table) (changes map[string]Change, alike bool, err error) {
	next, err := want.content()
	if err != nil || !have.sameStructure(next) {
		return nil, false, err
	}
	return difference(have, want), true, nil
}

func difference(have Content, want *Table) map[string]Change {
	changes := map[string]Change{}
	for name, set := range want.Sets {
		c := Change{Elements: reconcile.Diff(have.Elements[name], set.Elements, Element.Compare)}
		if set.Interval && !set.Concat {
			c.all = set.Elements
		}
		if len(c.Elements) > 0 {
			changes[name] = c
		}
	}
	return changes
}

// Transaction changes a table as f says, whole or not at all. It opens its socket in
// the calling thread's network namespace.
func Transaction(table string, f func(*nftables.Conn) error) error {
	conn, err := Open()
	if err != nil {
		return err
	}
	if err = f(conn); err == nil {
		err = conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("write nftables table inet %s: %w", table, err)
	}
	return nil
}

// Edit is a change of elements of a table's sets, by the sets' names, and of chains to which
// elements lead, or others of these chains.
type Edit struct {
	*Table
	Changes map[string]Change
	// Come are the names of the table's chains that are not there yet, and Go those of
	// chains that are there no more. Who leads to another comes behind it, and goes before it.
	Come, Go []string
}

// Empty reports whether there is nothing to do.
func (e Edit) Empty() bool { return len(e.Changes)+len(e.Come)+len(e.Go) == 0 }

// Apply does edits of one or more tables in one transaction, and returns what it did.
func Apply(edits ...Edit) ([]string, error) {
	edits = slices.DeleteFunc(slices.Clone(edits), Edit.Empty)
	if len(edits) == 0 {
		return nil, nil
	}
	var names []string
	for _, e := range edits {
		names = append(names, e.Name)
	}
	var done []string
	err := Transaction(strings.Join(names, " and "), func(conn *nftables.Conn) (err error) {
		done, err = write(conn, edits)
		return err
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

// write adds edits to a transaction, and returns what they are for people.
func write(conn *nftables.Conn, edits []Edit) (done []string, err error) {
	for _, e := range edits {
		for _, name := range e.Come {
			c := conn.AddChain(&nftables.Chain{Table: InetTable(e.Name), Name: name})
			if err := addRules(conn, c, e.Chains[name]); err != nil {
				return nil, fmt.Errorf("add chain %s: %w", name, err)
			}
			done = append(done, "add chain "+name)
		}
		for _, name := range slices.Sorted(maps.Keys(e.Changes)) {
			if err := e.Changes[name].write(conn, e.Sets[name].In(e.Name, name)); err != nil {
				return nil, fmt.Errorf("change set %s: %w", name, err)
			}
			done = append(done, e.Changes[name].describe(name))
		}
		for _, name := range e.Go {
			c := &nftables.Chain{Table: InetTable(e.Name), Name: name}
			conn.FlushChain(c)
			conn.DelChain(c)
			done = append(done, "delete chain "+name)
		}
	}
	return done, nil
}

// Difference returns what makes the elements of a set of the content those of a table's
// set of that name; nothing where the content has none like it.
func (c Content) Difference(t *Table, set string) []reconcile.Change[Element, Value] {
	s := t.Sets[set]
	if c.sets[set] != describeSet(s.In(t.Name, set)) {
		return nil
	}
	return reconcile.Diff(c.Elements[set], s.Elements, Element.Compare)
}

// With returns the content with other elements of a set.
func (c Content) With(set string, elements Elements) Content {
	c.Elements = maps.Clone(c.Elements)
	c.Elements[set] = elements
	return c
}

// structureChange says which chains and sets come, change and go.
func structureChange(have, next Content) string {
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

// addTable adds a table that is not there. Elements come last: the kernel looks through all that
// are in a map already for each chain whose rules come to ask it, and at the rules alone for each
// element that comes.
func addTable(conn *nftables.Conn, r *Table) error {
	t := conn.AddTable(InetTable(r.Name))
	chains, sets := map[string]*nftables.Chain{}, map[string]*nftables.Set{}
	for _, name := range slices.Sorted(maps.Keys(r.Chains)) {
		c := &nftables.Chain{Table: t, Name: name}
		if h := r.Chains[name].Hook; h != nil {
			policy := nftables.ChainPolicyAccept
			c.Type, c.Hooknum, c.Priority, c.Policy = h.Kind, &h.Number, &h.Priority, &policy
		}
		chains[name] = conn.AddChain(c)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Sets)) {
		sets[name] = r.Sets[name].In(r.Name, name)
		if err := conn.AddSet(sets[name], nil); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Chains)) {
		if err := addRules(conn, chains[name], r.Chains[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Sets)) {
		if err := AddElements(conn, sets[name], r.Sets[name].Elements, 0); err != nil {
			return err
		}
	}
	return nil
}

// addRules adds a chain's rules to one that has none.
func addRules(conn *nftables.Conn, to *nftables.Chain, c *Chain) error {
	for _, rule := range c.Rules {
		data, err := rule.userData()
		if err != nil {
			return err
		}
		conn.AddRule(&nftables.Rule{Table: to.Table, Chain: to, Exprs: rule.Exprs, UserData: data})
	}
	return nil
}

// Change is what becomes of a set's elements.
type Change struct {
	// Elements are those that come, go or get another value.
	Elements []reconcile.Change[Element, Value]
	// Whole, if it is not nil, takes the place of all that there are.
	Whole Elements
	// all are the elements of a set of intervals. To change it, it is filled anew, as
	// the kernel judges overlaps one interval's end at a time.
	all Elements
}

// describe says for people what becomes of the set of a name.
func (c Change) describe(name string) string {
	if c.Whole != nil {
		return fmt.Sprintf("fill set %s anew: %d elements", name, len(c.Whole))
	}
	come, gone := c.list()
	return fmt.Sprintf("change set %s: %d elements come, %d go", name, len(come), len(gone))
}

// list returns the elements that come, and those that go. What gets another value does
// both.
func (c Change) list() (come, gone []nftables.SetElement) {
	for _, e := range c.Elements {
		if e.Old != nil {
			gone = append(gone, e.Key.with(*e.Old, 0))
		}
		if e.New != nil {
			come = append(come, e.Key.with(*e.New, 0))
		}
	}
	return come, gone
}

// write adds the change to a transaction.
func (c Change) write(conn *nftables.Conn, s *nftables.Set) error {
	for _, anew := range []Elements{c.Whole, c.all} {
		if anew != nil {
			conn.FlushSet(s)
			return AddElements(conn, s, anew, 0)
		}
	}
	come, gone := c.list()
	for chunk := range slices.Chunk(gone, elementsPerMessage) {
		if err := conn.SetDeleteElements(s, chunk); err != nil {
			return err
		}
	}
	for chunk := range slices.Chunk(come, elementsPerMessage) {
		if err := conn.SetAddElements(s, chunk); err != nil {
			return err
		}
	}
	return nil
}

// AddElements adds elements that end by themselves after some time, if it is
// not 0. Those that are there end when they would have.
func AddElements(conn *nftables.Conn, s *nftables.Set, e Elements, timeout time.Duration) error {
	return each(conn.SetAddElements, s, e, timeout)
}

// RenewElements makes elements end after some time from now, whether or not they are
// there. The kernel does not prolong what is there when it is added, and does not delete
// what is not there. So all are added, deleted and added.
func RenewElements(conn *nftables.Conn, s *nftables.Set, e Elements, timeout time.Duration) error {
	for _, write := range []func(*nftables.Set, []nftables.SetElement) error{conn.SetAddElements, conn.SetDeleteElements, conn.SetAddElements} {
		if err := each(write, s, e, timeout); err != nil {
			return err
		}
	}
	return nil
}

// each writes elements, with the time after which they end, some per message. Those of
// intervals are in order; what order others are in says nothing to a kernel.
func each(write func(*nftables.Set, []nftables.SetElement) error, s *nftables.Set, e Elements, timeout time.Duration) error {
	list := make([]nftables.SetElement, 0, min(len(e), elementsPerMessage))
	put := func(k Element, v Value) (err error) {
		if list = append(list, k.with(v, timeout)); len(list) == cap(list) {
			err = write(s, list) // which keeps nothing of the list
			list = list[:0]
		}
		return err
	}
	if s.Interval {
		for _, k := range e.Keys() {
			if err := put(k, e[k]); err != nil {
				return err
			}
		}
	} else {
		for k, v := range e {
			if err := put(k, v); err != nil {
				return err
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	return write(s, list)
}

// Keys returns the keys in order.
func (e Elements) Keys() []Element { return slices.SortedFunc(maps.Keys(e), Element.Compare) }

// Compare is the order of elements. An interval ends before the next begins.
func (e Element) Compare(o Element) int {
	return cmp.Or(strings.Compare(e.Key, o.Key), end(o)-end(e), strings.Compare(e.Last, o.Last))
}

func end(e Element) int {
	if e.End {
		return 1
	}
	return 0
}

// with returns an element with its value, and after what time it ends by itself, as
// the library wants it.
func (e Element) with(v Value, timeout time.Duration) nftables.SetElement {
	one := nftables.SetElement{Key: []byte(e.Key), KeyEnd: []byte(e.Last), IntervalEnd: e.End, Timeout: timeout}
	if v.Verdict != (Verdict{}) {
		one.VerdictData = &expr.Verdict{Kind: v.Verdict.Kind, Chain: v.Verdict.Chain}
	}
	if v.Data != "" {
		one.Val = []byte(v.Data)
	}
	return one
}

// In is the set of a name in a table as the library wants it.
func (s *Set) In(inTable, name string) *nftables.Set {
	n := &nftables.Set{Table: InetTable(inTable), Name: name, KeyType: s.Key, Interval: s.Interval, Concatenation: s.Concat,
		IsMap: s.Verdicts || s.Data.Bytes > 0, DataType: s.Data, Counter: s.Counts, HasTimeout: s.Timeout, Size: s.Size}
	if s.Dynamic {
		n.Dynamic, n.Size, n.Timeout = true, cmp.Or(s.Size, dynamicSize), cmp.Or(s.Lasts, dynamicTimeout)
	}
	if s.Key == nftables.TypeIFName {
		n.KeyByteOrder = binaryutil.NativeEndian // for people: nft shows names then
	}
	if s.Verdicts {
		n.DataType = nftables.TypeVerdict
	}
	return n
}

// InetTable is the table of a name as the library wants it.
func InetTable(name string) *nftables.Table {
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

// Open opens a socket, in the calling thread's network namespace, that OwnSocket then
// knows.
func Open() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(BufferSize), c.SetWriteBuffer(BufferSize), ownSockets.add(c))
	}))
	if err != nil {
		return nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	return conn, nil
}

// Generation is the number of the namespace's nftables ruleset, which every
// transaction increases.
func Generation() (uint32, error) {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	r.AddData(&nl.Nfgenmsg{Version: nl.NFNETLINK_V0})
	messages, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, fmt.Errorf("read the ruleset's generation: %w", err)
	}
	for _, m := range messages {
		for kind, v := range message.Attributes(m[min(len(m), nl.SizeofNfgenmsg):]) {
			if kind == unix.NFTA_GEN_ID && len(v) == 4 {
				return message.BigEndian(v), nil
			}
		}
	}
	return 0, errors.New("read the ruleset's generation: the kernel did not tell it")
}
