package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/plan"
)

func pools(prefixes ...string) []plan.Pool {
	var ps []plan.Pool
	for _, p := range prefixes {
		prefix := netip.MustParsePrefix(p)
		ps = append(ps, plan.Pool{Network: plan.DefaultNetwork, Prefix: prefix, Gateway: prefix.Addr().Next()})
	}
	return ps
}

func request(n int) Request {
	id := fmt.Sprintf("pod%d", n)
	return Request{Key: Key{id, "eth0"}, Network: plan.DefaultNetwork, ID: "request-" + id, HostInterface: "weft" + id}
}

// requestIn is the request of another pod's interface in a network.
func requestIn(network string, n int) Request {
	req := request(n)
	req.Network, req.IfName = network, "in-"+network
	return req
}

// poolsIn are the pools of a network.
func poolsIn(network string, prefixes ...string) []plan.Pool {
	ps := pools(prefixes...)
	for i := range ps {
		ps[i].Network = network
	}
	return ps
}

func open(t testing.TB, path string) *Journal {
	t.Helper()
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func reserve(t testing.TB, j *Journal, n int, ps []plan.Pool) Attachment {
	t.Helper()
	a, err := j.Reserve(request(n), always(ps), nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var ignoreCreated = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}

func TestAddressesAreGivenInOrderAndReusedAsLateAsPossible(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"))
	ps := pools("10.1.0.0/29") // .1 is the gateway, so .2 to .6
	var got []string
	take := func(n int) { got = append(got, reserve(t, j, n, ps).Addresses[0].String()) }
	free := func(n int) {
		if err := j.Release(request(n).Key); err != nil {
			t.Fatal(err)
		}
	}
	take(1)
	take(2)
	free(1)
	take(3) // not .2, which was used before
	free(3)
	take(4)
	take(5)
	take(6) // never used ones are gone: .2 is the longest free
	take(7)
	want := []string{"10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.2", "10.1.0.4"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReserveErrors(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"))
	one := pools("10.1.0.0/30")
	reserve(t, j, 1, one)
	before := j.All()
	for _, test := range []struct {
		name  string
		req   Request
		pools []plan.Pool
		is    error
		want  string
	}{
		{"full", request(2), one, ErrExhausted, "no address left in the pool 10.1.0.0/30: 1 of its 1 addresses are in use"},
		{"two full", request(2), append(one, pools("10.2.0.0/32")...), ErrExhausted,
			"no address left in the pool 10.1.0.0/30: 1 of its 1 addresses are in use\nno address left in the pool 10.2.0.0/32: 1 of its 1 addresses are in use"},
		{"one family full", request(2), append(pools("fd00::/64"), one...), ErrExhausted, "no address left in the pool 10.1.0.0/30: 1 of its 1 addresses are in use"},
		{"no pools", request(2), nil, ErrNoPools, "the node has no subnet yet"},
		{"another network's", request(2), []plan.Pool{{Network: "other", Prefix: one[0].Prefix}}, ErrNoPools, "the node has no subnet yet"},
		{"none of its network", requestIn("red", 2), one, ErrNoPools, "the node has no subnet yet in network red"},
		{"full in its network", requestIn("red", 2), poolsIn("red", "10.1.0.1/32"), ErrExhausted, "no address left in the pool 10.1.0.1/32 of network red: 1 of its 1 addresses are in use"},
		{"same again", request(1), pools("10.3.0.0/24"), ErrExists, "pod1/eth0: the attachment exists already"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.name == "two full" {
				a := reserve(t, j, 9, pools("10.2.0.0/32")[:1])
				defer j.Release(a.Key)
			}
			if test.name == "full in its network" {
				a, err := j.Reserve(requestIn("red", 9), always(test.pools), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer j.Release(a.Key)
			}
			_, err := j.Reserve(test.req, always(test.pools), nil)
			if !errors.Is(err, test.is) || err.Error() != test.want {
				t.Errorf("got %q, want %q", err, test.want)
			}
		})
	}
	if diff := cmp.Diff(before, j.All(), ignoreCreated); diff != "" {
		t.Errorf("errors changed something: %s", diff)
	}
}

func TestReservedAddressesAreNotGivenOut(t *testing.T) {
	for _, test := range []struct {
		pool plan.Pool
		want string
	}{
		{pools("10.1.0.0/30")[0], "10.1.0.2"},
		{pools("10.1.0.0/31")[0], "10.1.0.0"},
		{plan.Pool{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.0.0/32")}, "10.1.0.0"},
		{plan.Pool{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.0.0/29"), Gateway: netip.MustParseAddr("10.1.0.6")}, "10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.4 10.1.0.5"},
		{pools("fd00::/126")[0], "fd00::2 fd00::3"},
		{pools("fd00::/127")[0], "fd00::"},
	} {
		t.Run(test.pool.Prefix.String(), func(t *testing.T) {
			j := open(t, filepath.Join(t.TempDir(), "journal"))
			var got []string
			for n := 0; ; n++ {
				a, err := j.Reserve(request(n), always([]plan.Pool{test.pool}), nil)
				if err != nil {
					break
				}
				got = append(got, a.Addresses[0].String())
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBigPoolsAreFilledToTheBrim(t *testing.T) {
	s := newState()
	s.usePools(pools("10.0.0.0/8", "fd00::/64"))
	for n := range maxAddresses {
		addrs, gateways, err := s.pick(plan.DefaultNetwork)
		if n == maxAddresses-2 {
			// The network's address and the gateway are all that is left out.
			if !errors.Is(err, ErrExhausted) {
				t.Fatalf("address %d: %v", n, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		a := Attachment{Request: request(n), Addresses: addrs, Gateways: gateways, Phase: Ready}
		if err := s.apply(record{Op: opAttach, Attachment: &a}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTwoProcessesCannotShareAJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	want := "journal " + path + " is in use by another process: is an agent running on this node already?"
	if _, err := Open(path); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	j.Close()
	open(t, path)
}

func TestJournalOfAnUnknownVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	for _, header := range []string{`{"op":"weft-journal","version":3}`, `{"op":"weft-journal"}`} {
		file := header + "\n" + `{"op":"attach"` // torn, as by a crash
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), ", and this agent reads versions 1 to 2: run the version of Weft that wrote it, or drain the node and remove the file") {
			t.Error(err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != file {
			t.Errorf("it was changed to %q, %v", now, err)
		}
	}
}

// TestSameAddressInTwoNetworks has two networks with the very same prefixes: each
// gives its pods the same addresses, and neither waits for what the other frees.
func TestSameAddressInTwoNetworks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	ps := append(pools("10.1.0.0/29", "fd00::/125"), poolsIn("red", "10.1.0.0/29", "fd00::/125")...)
	take := func(req Request) string {
		t.Helper()
		a, err := j.Reserve(req, always(ps), nil)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(a.Network, a.Addresses, a.Gateways, a.Router)
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	const gateways = " [10.1.0.1 fd00::1] 10.1.0.1"
	// Both of one container.
	expect(take(request(1)), "default[10.1.0.2 fd00::2]"+gateways)
	expect(take(requestIn("red", 1)), "red[10.1.0.2 fd00::2]"+gateways)
	if err := j.Release(requestIn("red", 1).Key); err != nil {
		t.Fatal(err)
	}
	// What red freed is not free in the other, and the last to be used in red again.
	expect(take(request(2)), "default[10.1.0.3 fd00::3]"+gateways)
	expect(take(requestIn("red", 2)), "red[10.1.0.3 fd00::3]"+gateways)
	for n := range 3 {
		take(requestIn("red", 10+n))
	}
	if err := j.Release(request(2).Key); err != nil {
		t.Fatal(err)
	}
	if err := j.compact(); err != nil {
		t.Fatal(err)
	}
	want := j.All()
	j.Close()
	j = open(t, path)
	if diff := cmp.Diff(want, j.All(), ignoreCreated); diff != "" {
		t.Errorf("after a restart: %s", diff)
	}
	expect(take(requestIn("red", 20)), "red[10.1.0.2 fd00::7]"+gateways)
	expect(take(request(20)), "default[10.1.0.4 fd00::4]"+gateways)
	a := Attachment{Request: requestIn("red", 30), Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Phase: Ready}
	if err := j.Adopt(a); err == nil || err.Error() != "the address 10.1.0.2 in network red is held by pod20/in-red already, and pod30/in-red wants it too" {
		t.Error(err)
	}
	a.Network = ""
	if err := j.Adopt(a); err == nil || err.Error() != "attachment pod30/in-red is in no network" {
		t.Error(err)
	}
}

// A story of a node's pods, which the tests below interrupt.
func story(t testing.TB, j *Journal) {
	t.Helper()
	ps := pools("10.1.0.0/28", "fd00:1::/64")
	for n := range 5 {
		a := reserve(t, j, n, ps)
		if n != 3 {
			if err := j.Commit(a.Key); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range []int{1, 0} {
		if err := j.Release(request(n).Key); err != nil {
			t.Fatal(err)
		}
	}
	reserve(t, j, 7, ps)
	if _, err := j.Reserve(requestIn("red", 7), always(poolsIn("red", "10.1.0.0/28")), nil); err != nil {
		t.Fatal(err)
	}
}

func TestCrashAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	j := open(t, path)
	story(t, j)
	j.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ps := pools("10.1.0.0/28", "fd00:1::/64")
	for n := range len(data) {
		// The naive reading: as many records as there are whole lines.
		want := newState()
		for line := range bytes.Lines(data[:n]) {
			if bytes.HasSuffix(line, []byte("\n")) {
				r, err := parse(line)
				if err != nil {
					t.Fatal(err)
				}
				if r.Op != opHeader {
					if err := want.apply(r); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := os.WriteFile(path, data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		j := open(t, path)
		if err := j.Damage(); err != nil {
			t.Fatalf("cut at byte %d: %v", n, err)
		}
		if diff := cmp.Diff(want.attachments, j.state.attachments, ignoreCreated); diff != "" {
			t.Fatalf("cut at byte %d: %s", n, diff)
		}
		// It must go on, and nobody gets what another has.
		a := reserve(t, j, 100, ps)
		for _, addr := range a.Addresses {
			addr := plan.Address{Network: a.Network, IP: addr}
			if holder, ok := want.inUse[addr]; ok {
				t.Fatalf("cut at byte %d: %s is given twice, to %s and %s", n, addr, holder, a.Key)
			}
			if at, ok := want.freed[addr]; ok {
				t.Fatalf("cut at byte %d: %s was given out while there are addresses never used (freed %d)", n, addr, at)
			}
		}
		j.Close()
		again := open(t, path)
		if diff := cmp.Diff(j.All(), again.All(), ignoreCreated); diff != "" {
			t.Fatalf("cut at byte %d, then opened twice: %s", n, diff)
		}
		again.Close()
	}
}

func TestDamageInEveryLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	j := open(t, path)
	story(t, j)
	j.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(bytes.TrimSuffix(data, nil), []byte("\n"))
	lines = lines[:len(lines)-1]
	for n := range lines {
		broken := bytes.Clone(data)
		offset := len(bytes.Join(lines[:n], nil))
		copy(broken[offset:], "\x00\x00\x00")
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		j := open(t, path)
		var damage *DamageError
		if !errors.As(j.Damage(), &damage) || damage.Line != n+1 || damage.Path != path {
			t.Fatalf("line %d: %v", n+1, j.Damage())
		}
		if saved, err := os.ReadFile(damage.Saved); err != nil || !bytes.Equal(saved, broken) {
			t.Fatalf("line %d: the damaged file was not kept: %v", n+1, err)
		}
		// All that the other lines tell of is held.
		for m, line := range lines {
			r, err := parse(line)
			if err != nil {
				t.Fatal(err)
			}
			if m == n || r.Op != opAttach || r.Attachment.ContainerID == "pod0" || r.Attachment.ContainerID == "pod1" {
				continue
			}
			if _, ok := j.Get(r.Attachment.Key); !ok {
				t.Errorf("damage in line %d lost %s of line %d", n+1, r.Attachment.Key, m+1)
			}
		}
		// The new file is whole.
		j.Close()
		again := open(t, path)
		if again.Damage() != nil {
			t.Error(again.Damage())
		}
		if diff := cmp.Diff(j.All(), again.All(), ignoreCreated); diff != "" {
			t.Errorf("damage in line %d: %s", n+1, diff)
		}
		again.Close()
	}
}

func TestAdoptedAddressesAreNotGivenOut(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"))
	a := Attachment{Request: request(1), Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Phase: Ready}
	if err := j.Adopt(a); err != nil {
		t.Fatal(err)
	}
	b := a
	b.ContainerID = "other"
	if err := j.Adopt(b); err == nil || err.Error() != "the address 10.1.0.2 is held by pod1/eth0 already, and other/eth0 wants it too" {
		t.Error(err)
	}
	if got := reserve(t, j, 2, pools("10.1.0.0/24")).Addresses[0].String(); got != "10.1.0.3" {
		t.Errorf("got %s", got)
	}
}

// fullDisk takes so many more bytes.
type fullDisk struct {
	*os.File
	left int
	// stuck makes Truncate fail too.
	stuck bool
}

func (f *fullDisk) Write(p []byte) (int, error) {
	if len(p) <= f.left {
		f.left -= len(p)
		return f.File.Write(p)
	}
	n, _ := f.File.Write(p[:f.left])
	f.left = 0
	return n, errors.New("no space left on device")
}

func (f *fullDisk) Truncate(size int64) error {
	if f.stuck {
		return errors.New("input/output error")
	}
	return f.File.Truncate(size)
}

func TestFullFileSystemChangesNothing(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "journal")
		j := open(t, path)
		ps := pools("10.1.0.0/24")
		reserve(t, j, 1, ps)
		disk := &fullDisk{File: j.file.(*os.File), left: 40, stuck: stuck}
		j.file = disk
		if _, err := j.Reserve(request(2), always(ps), nil); err == nil || !strings.Contains(err.Error(), "no space left on device") {
			t.Fatal(err)
		}
		if got := len(j.All()); got != 1 {
			t.Fatalf("there are %d attachments", got)
		}
		disk.left = 1 << 20
		a, err := j.Reserve(request(3), always(ps), nil)
		if stuck {
			if err == nil || !strings.Contains(err.Error(), "takes no more records") {
				t.Fatalf("half a line was followed by another: %v", err)
			}
		} else if err != nil || a.Addresses[0].String() != "10.1.0.3" {
			t.Fatal(a, err)
		}
		want := j.All()
		j.Close()
		again := open(t, path)
		if again.Damage() != nil {
			t.Fatal(again.Damage())
		}
		if diff := cmp.Diff(want, again.All(), ignoreCreated); diff != "" {
			t.Error(diff)
		}
	}
}

func TestCompactionKeepsEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	ps := pools("10.1.0.0/24")
	for n := range 4 * compactAfter {
		a := reserve(t, j, n, ps)
		if n%100 == 0 {
			continue
		}
		if err := j.Release(a.Key); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if lines, most := bytes.Count(data, []byte("\n")), compactAfter+2*len(j.All())+1; lines > most {
		t.Errorf("the file has %d lines, more than %d", lines, most)
	}
	want := j.state
	j.Close()
	again := open(t, path)
	if diff := cmp.Diff(want.attachments, again.state.attachments, ignoreCreated); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want.freedInOrder(), again.state.freedInOrder(), ignoreCreated); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("the temporary file is still there")
	}
}

func FuzzReplay(f *testing.F) {
	path := filepath.Join(f.TempDir(), "journal")
	j := open(f, path)
	story(f, j)
	j.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)/2])
	first, err := os.ReadFile(firstVersion)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(first)
	f.Add([]byte("\n\n{}\n"))
	f.Add([]byte(`{"op":"attach","attachment":{"addresses":["::ffff:1.2.3.4"]}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := replay(data)
		if err != nil {
			return
		}
		if r.size > int64(len(data)) || r.size > 0 && data[r.size-1] != '\n' {
			t.Fatalf("the whole lines of %d bytes end at %d", len(data), r.size)
		}
		// What was read can be written, and reads the same.
		var b bytes.Buffer
		if _, err := writeRecords(&b, append([]record{{Op: opHeader, Version: journalVersion}}, r.state.snapshot()...)); err != nil {
			t.Fatal(err)
		}
		again, err := replay(b.Bytes())
		if err != nil || again.line != 0 {
			t.Fatalf("line %d: %v %v\n%s", again.line, again.reason, err, b.String())
		}
		if diff := cmp.Diff(r.state.attachments, again.state.attachments, ignoreCreated); diff != "" {
			t.Fatal(diff)
		}
		holders := map[plan.Address]Key{}
		for k, a := range again.state.attachments {
			for addr := range a.held() {
				if other, ok := holders[addr]; ok {
					t.Fatalf("%s is held by %s and %s", addr, k, other)
				}
				holders[addr] = k
			}
		}
	})
}

// always is what says of pools that do not change.
func always(pools []plan.Pool) func() []plan.Pool {
	return func() []plan.Pool { return pools }
}

// TestNodesOwnAddressesAreGivenToNoPod has a node that has addresses of its pool itself:
// a pod with one would not be reached. They are given out once the node has them no more,
// as late as what was freed then, also by an agent that starts anew meanwhile.
func TestNodesOwnAddressesAreGivenToNoPod(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	ps := pools("10.1.0.0/29") // .1 is the gateway, so .2 to .6
	node, asked := map[string]bool{"10.1.0.3": true, "10.1.0.4": true}, 0
	var got []string
	give := func(n int) error {
		a, err := j.Reserve(request(n), always(ps), func(a netip.Addr) bool { asked++; return node[a.String()] })
		if err == nil {
			got = append(got, a.Addresses[0].String())
		}
		return err
	}
	for n := range 3 {
		if err := give(n); err != nil {
			t.Fatal(err)
		}
	}
	if want := "10.1.0.2 10.1.0.5 10.1.0.6"; strings.Join(got, " ") != want {
		t.Fatalf("given are %v, not %s", got, want)
	}
	if asked != 5 {
		t.Errorf("the node was asked %d times for 3 pods and 2 addresses of its own", asked)
	}
	if err := give(3); !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "the node has 10.1.0.3 itself") {
		t.Fatalf("what is left the node has itself: %v", err)
	}
	j.Close()
	j = open(t, path)
	delete(node, "10.1.0.4")
	if err := give(3); err != nil || got[3] != "10.1.0.4" {
		t.Fatalf("the node has no 10.1.0.4 any more, and given are %v (%v)", got, err)
	}
}

// TestNodeWithPrefixOfItsPool has a node that takes a prefix of very many addresses for
// its own: one attachment asks for a bounded number of them.
func TestNodeWithPrefixOfItsPool(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"))
	asked := 0
	_, err := j.Reserve(request(1), always(pools("fd00::/64")), func(netip.Addr) bool { asked++; return true })
	if !errors.Is(err, ErrExhausted) || asked > mostOfNode+1 {
		t.Errorf("it asked %d times: %v", asked, err)
	}
}
