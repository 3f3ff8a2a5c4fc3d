package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	mine   = MAC{2, 0, 0, 0, 0, 1}
	theirs = MAC{2, 0, 0, 0, 0, 2}
	four   = netip.MustParseAddr("192.0.2.7")
	six    = netip.MustParseAddr("2001:db8::7")
	equal  = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
)

// The bytes are part of what nodes of several versions agree on.
func TestBytes(t *testing.T) {
	for name, test := range map[string]struct {
		frame []byte
		want  string
	}{
		"heartbeat": {Frames(mine, Heartbeat{Node: "n1", Claims: []Claim{{four, Owns, 0}, {six, Leaves, 9}}}, 1500)[0],
			"037765667401 020000000001 88b5 77656674 01 02 6e31 0002 00 00 c0000207 83 09 20010db8000000000000000000000007 " + strings.Repeat("00", 12)},
		"another node's heartbeat": {Frames(mine, Heartbeat{Node: "n1", Of: "n2", Claims: []Claim{{four, Owns, 0}}}, 1500)[0],
			"037765667401 020000000001 88b5 77656674 02 02 6e31 02 6e32 0001 00 00 c0000207 " + strings.Repeat("00", 27)},
		"marked heartbeat": {Frames(mine, Heartbeat{Node: "n1", Claims: []Claim{{four, Owns, 0}}, Mark: Mark{0xa, 0xb, 7: 0xc}}, 1500)[0],
			"037765667401 020000000001 88b5 77656674 01 02 6e31 0002 83 ff 0100000000000000 0a0b00000000000c 00 00 c0000207 " + strings.Repeat("00", 12)},
		"probe": {ProbeARP(mine, four),
			"ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 00000000 000000000000 c0000207 000000000000000000000000000000000000"},
		"announcement": {AnnounceARP(mine, four)[0],
			"ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 c0000207 000000000000 c0000207 000000000000000000000000000000000000"},
		"announcement as a reply": {AnnounceARP(mine, four)[1],
			"ffffffffffff 020000000001 0806 0001 0800 06 04 0002 020000000001 c0000207 020000000001 c0000207 000000000000000000000000000000000000"},
		"answer": {ARP{SenderMAC: theirs, Sender: netip.MustParseAddr("192.0.2.1"), Target: four}.Answer(mine),
			"020000000002 020000000001 0806 0001 0800 06 04 0002 020000000001 c0000207 020000000002 c0000201 000000000000000000000000000000000000"},
		"advertisement": {AnnounceNeighbour(mine, six),
			"333300000001 020000000001 86dd 60000000 0020 3a ff 20010db8000000000000000000000007 ff020000000000000000000000000001 " +
				"88 00 f91e 20000000 20010db8000000000000000000000007 0201 020000000001"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, want := hex.EncodeToString(test.frame), strings.ReplaceAll(test.want, " ", ""); got != want {
				t.Errorf("it is\n%s, want\n%s", got, want)
			}
		})
	}
}

func anyAddress() *rapid.Generator[netip.Addr] {
	return rapid.Custom(func(t *rapid.T) netip.Addr {
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "size")
		a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "bytes"))
		return a
	}).Filter(Answerable)
}

func TestAHeartbeatIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Heartbeat{Node: rapid.StringMatching(`[a-z0-9]{1,253}`).Draw(t, "node"), Of: rapid.StringMatching(`([a-z0-9]{1,253})?`).Draw(t, "of"),
			Mark: rapid.SampledFrom([]Mark{{}, MarkOf("one"), MarkOf("two")}).Draw(t, "mark")}
		h.Claims = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Claim {
			return Claim{anyAddress().Draw(t, "address"), State(rapid.IntRange(0, int(states)-1).Draw(t, "state")), rapid.Uint8().Draw(t, "grade")}
		}), 1, 1200).Draw(t, "claims")
		mtu := rapid.IntRange(576, 9000).Draw(t, "mtu")
		var read []Claim
		for _, b := range Frames(mine, h, mtu) {
			if len(b) > headerLength+min(mtu, 1500) {
				t.Fatalf("a frame has %d bytes on a link of %d, where other nodes may have 1500", len(b), mtu)
			}
			got, from, err := ReadHeartbeat(b)
			if err != nil || from != mine || got.Node != h.Node || got.Of != h.Of || got.Mark != h.Mark {
				t.Fatalf("read %v from %s: %v", got, from, err)
			}
			read = append(read, got.Claims...)
		}
		if diff := cmp.Diff(h.Claims, read, equal); diff != "" {
			t.Error(diff)
		}
	})
}

// A node's Mark is the same wherever it is made, and another one's is another.
func TestMarks(t *testing.T) {
	if one := MarkOf("1e6b6a4e-0000-0000-0000-000000000001"); one != MarkOf("1e6b6a4e-0000-0000-0000-000000000001") || one == MarkOf("1e6b6a4e-0000-0000-0000-000000000002") || one == (Mark{}) {
		t.Errorf("the mark is %x", one)
	}
	if none := MarkOf(""); none != (Mark{}) {
		t.Errorf("who has no UID has the mark %x", none)
	}
}

func TestAThousandAddressesTakeFewFrames(t *testing.T) {
	h := Heartbeat{Node: "node1"}
	for i := range 1000 {
		h.Claims = append(h.Claims, Claim{Address: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})})
	}
	for _, mtu := range []int{1500, 9000} { // a node with 9000 may be beside one with 1500
		if n := len(Frames(mine, h, mtu)); n != 5 {
			t.Errorf("they take %d frames where the MTU is %d, want 5", n, mtu)
		}
	}
}

func TestNeighbours(t *testing.T) {
	ask := Neighbour{From: theirs, To: groupMAC(SolicitedNode(six)), Source: netip.MustParseAddr("fe80::2"), Destination: SolicitedNode(six), Target: six, Link: theirs, HasLink: true}
	for name, n := range map[string]Neighbour{"solicitation": ask,
		"answer": {Advertisement: true, Solicited: true, Override: true, From: mine, To: theirs, Source: six, Destination: ask.Source, Target: six, Link: mine, HasLink: true}} {
		got, err := ReadNeighbour(n.Frame())
		if diff := cmp.Diff(n, got, equal); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	answer, err := ReadNeighbour(ask.Answer(mine))
	if err != nil || !answer.Solicited || answer.Destination != ask.Source || answer.To != theirs || answer.Link != mine {
		t.Errorf("the answer is %+v, %v", answer, err)
	}
	probe, err := ReadNeighbour(ProbeNeighbour(theirs, six))
	if err != nil || !probe.Source.IsUnspecified() || probe.Target != six || probe.To != (MAC{0x33, 0x33, 0xff, 0, 0, 7}) {
		t.Errorf("the probe is %+v, %v", probe, err)
	}
	if answer, err := ReadNeighbour(probe.Answer(mine)); err != nil || answer.Solicited || answer.Destination != AllNodesAddress {
		t.Errorf("the answer to a probe is %+v, %v", answer, err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	whole := Frames(mine, Heartbeat{Node: "n1", Claims: []Claim{{four, Owns, 0}}}, 1500)[0]
	change := func(at int, to byte) []byte {
		b := bytes.Clone(whole)
		b[at] = to
		return b
	}
	for _, test := range []struct {
		frame []byte
		want  string
	}{
		{nil, "no frame of EtherType"},
		{change(12, 8), "no frame of EtherType"},
		{change(6, 3), "is a group"},
		{change(0, 2), "for 02:77:65:66:74:01"},
		{append(bytes.Clone(Broadcast[:]), whole[6:]...), "for ff:ff:ff:ff:ff:ff"},
		{change(14, 'W'), "no heartbeat of Weft's"},
		{change(18, 3), "version 3"},
		{change(18, 2), "name of its node"},
		{change(19, 0), "name of its node"},
		{change(19, 255), "name of its node"},
		{change(23, 0), "no room for 0 addresses"},
		{change(22, 255), "no room for"},
		{change(23, 2), "nobody answers for"},
		{change(24, 1<<5), "cannot be read"},
		{change(26, 0), "nobody answers for"},
		{change(59, 1), "something follows"},
		{whole[:28], "no room for 1"},
	} {
		_, _, err := ReadHeartbeat(test.frame)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%x: %v, want %q", test.frame, err, test.want)
		}
	}
	marked := Frames(mine, Heartbeat{Node: "n1", Claims: []Claim{{four, Leaves, 0}}, Mark: MarkOf("one")}, 1500)[0]
	claim := marked[headerLength+len(magic)+6:][:markSize]
	for what, frame := range map[string][]byte{
		"alone": append(append(bytes.Clone(marked[:headerLength+len(magic)+4]), 0, 1), claim...),
		"twice": append(append(append(bytes.Clone(marked[:headerLength+len(magic)+4]), 0, 3), claim...), marked[headerLength+len(magic)+6:]...),
	} {
		if h, _, err := ReadHeartbeat(frame); err == nil {
			t.Errorf("a heartbeat with its mark %s is read as %+v", what, h)
		}
	}
	arp := ARP{SenderMAC: mine, Sender: four, Target: four}.Frame(Broadcast)
	arp[8+headerLength] ^= 2
	if _, err := ReadARP(arp); err == nil {
		t.Error("ARP is heard from who says that it is another one")
	}
	far := AnnounceNeighbour(mine, six)
	far[headerLength+7]--
	if _, err := ReadNeighbour(far); err == nil {
		t.Error("neighbour discovery is heard that a router has forwarded")
	}
}

func FuzzRead(f *testing.F) {
	for _, b := range Frames(mine, Heartbeat{Node: "n1", Claims: []Claim{{four, Owns, 0}, {six, Claims, 1}}}, 1500) {
		f.Add(b)
	}
	f.Add(Frames(mine, Heartbeat{Node: "n1", Of: "n2", Claims: []Claim{{four, Owns, 0}}}, 1500)[0])
	f.Add(Frames(mine, Heartbeat{Node: "n1", Claims: []Claim{{four, Owns, 0}}, Mark: MarkOf("one")}, 1500)[0])
	f.Add(ProbeARP(mine, four))
	f.Add(AnnounceNeighbour(mine, six))
	f.Add(ProbeNeighbour(mine, six))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, from, err := ReadHeartbeat(b); err == nil {
			var claims []Claim
			for _, b := range Frames(from, h, 1500) {
				again, _, err := ReadHeartbeat(b)
				if err != nil || again.Node != h.Node || again.Of != h.Of || again.Mark != h.Mark {
					t.Errorf("%v is read as %v, %v", h, again, err)
				}
				claims = append(claims, again.Claims...)
			}
			if diff := cmp.Diff(h.Claims, claims, equal); diff != "" {
				t.Error(diff)
			}
			_ = fmt.Sprint(h)
		}
		if p, err := ReadARP(b); err == nil {
			if again, err := ReadARP(p.Frame(Broadcast)); err != nil || again != p {
				t.Errorf("%+v is read as %+v, %v", p, again, err)
			}
			p.Answer(mine)
		}
		if n, err := ReadNeighbour(b); err == nil {
			if again, err := ReadNeighbour(n.Frame()); err != nil || again != n {
				t.Errorf("%+v is read as %+v, %v", n, again, err)
			}
			n.Answer(mine)
		}
	})
}
