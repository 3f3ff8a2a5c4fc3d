// Package wire writes and reads what nodes and others say on a link about addresses that one
// node of several answers for: the heartbeats of these nodes, ARP for IPv4 (RFC 826, RFC 5227)
// and neighbour discovery for IPv6 (RFC 4861). It is pure. What it reads anybody on the link
// may have written, so it takes nothing that it does not know wholly.
//
// Start reading at Heartbeat.
package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// Ethernet addresses of groups. Group is that of heartbeats: it is administered locally, and
// so not one of those that a switch forwards only where somebody asked for them by IGMP or MLD.
var (
	Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	Group     = MAC{0x03, 'w', 'e', 'f', 't', 0x01}
	// AllNodes is that of IPv6's ff02::1 (RFC 2464, section 7).
	AllNodes = MAC{0x33, 0x33, 0, 0, 0, 1}
)

// The EtherTypes of frames. Heartbeats have the first of those that IEEE 802 leaves to local
// experiments: no router forwards them, and no pod's interface reaches the link.
const (
	EtherHeartbeat = 0x88b5
	EtherARP       = 0x0806
	EtherIPv6      = 0x86dd
)

// headerLength is that of an Ethernet header, minFrame what a frame has at least without its
// checksum: shorter ones are padded with zeros.
const (
	headerLength = 14
	minFrame     = 60
)

// frame returns an Ethernet header.
func frame(to, from MAC, kind uint16, size int) []byte {
	b := make([]byte, 0, headerLength+size)
	b = append(append(b, to[:]...), from[:]...)
	return binary.BigEndian.AppendUint16(b, kind)
}

// open takes the Ethernet header from a frame of a kind.
func open(b []byte, kind uint16) (from MAC, rest []byte, err error) {
	if len(b) < headerLength || binary.BigEndian.Uint16(b[12:]) != kind {
		return from, nil, fmt.Errorf("it is no frame of EtherType %#04x", kind)
	}
	from = MAC(b[6:])
	if from[0]&1 != 0 {
		return from, nil, fmt.Errorf("its sender %s is a group", from)
	}
	return from, b[headerLength:], nil
}

// What a node says of an address.
type State uint8

const (
	// Owns says that it answers for the address.
	Owns State = iota
	// Claims says that it is about to, unless it hears of another one.
	Claims
	// Pauses says that it will answer for it again in a moment, and that packets which come
	// to it for the address meanwhile are handled.
	Pauses
	// Leaves says that it does not answer for it any more.
	Leaves
	states
)

func (s State) String() string {
	return [...]string{"owns", "claims", "pauses", "leaves"}[s]
}

// Claim is what a node says of one address.
type Claim struct {
	Address netip.Addr
	State   State
	// Grade is how well the node can serve the address, 0 best.
	Grade uint8
}

// Stranger is the grade in a claim of a node that leaves an address as somebody else on the link answers for it who is no
// node. To nodes of former versions, which read no grade of what is left, it says that it is left.
const Stranger = 254

// Heartbeat is what a node says of addresses at a moment. It speaks of those alone that it
// names: a node that has more of them than a frame has room for sends several.
type Heartbeat struct {
	Node string
	// Of is whose claims these are, where the node repeats what it hears from another one; ""
	// where they are its own.
	Of     string
	Claims []Claim
	// Mark tells the node from one of the same name in another cluster. It is the zero Mark where that is not
	// said, as by nodes of former versions.
	Mark Mark
}

// Mark stands for a node of one cluster.
type Mark [8]byte

// MarkOf returns the Mark of a node whose Node has a UID, the zero Mark where it has none. All nodes of a
// cluster know the UID, and another cluster has others.
func MarkOf(uid string) (m Mark) {
	if uid != "" {
		sum := sha256.Sum256([]byte(uid))
		copy(m[:], sum[:])
	}
	return m
}

// The bytes of a heartbeat behind the Ethernet header: magic, version, the length of the
// node's name and the name, in the second version the same of whose claims they are, the number
// of claims in two bytes, and the claims: a byte whose lowest two bits are the state and whose
// highest says that the address is of IPv6, a byte with the grade, and the address. What a node
// says of itself is of the first version, which all nodes read.
//
// The Mark of the sender is in each frame as the first claim: that it leaves, with grade 255, an address of
// 100::/64, which no packets are for (RFC 6666), and whose last bytes are the Mark. Nodes of former versions
// read that, and are candidates for no such address, so that they hear what follows as they always did.
const (
	magic     = "weft"
	version   = 1
	repeated  = 2
	fixed     = len(magic) + 1 + 1 + 2
	sixth     = 1 << 7
	stateBits = 3
	// MaxNode is how long a node's name may be, in bytes (RFC 1123).
	MaxNode = 253
	// markGrade is the grade in the claim that has the Mark, and markSize how many bytes that claim has.
	markGrade = 255
	markSize  = 2 + 16
)

// marks is what an address of 100::/64 begins with.
var marks = [8]byte{0: 1}

// What an MTU counts as at least and at most, in bytes, when heartbeats are written. Nodes on one link may
// have different MTUs, and an interface drops frames that are longer than its own allows: a node that may
// send more than Ethernet's ordinary 1500 bytes does not know that all others can hear it.
const (
	minMTU = 576
	maxMTU = 1500
)

// Frames writes a heartbeat in as many frames as it needs on a link whose MTU is mtu, in
// bytes; one of less than 576 counts as 576, and one of more than 1500 as 1500. A heartbeat without claims is none.
func Frames(from MAC, h Heartbeat, mtu int) (frames [][]byte) {
	head := append([]byte(magic), version, byte(len(h.Node)))
	if h.Of != "" {
		head[len(magic)] = repeated
	}
	head = append(head, h.Node...)
	if h.Of != "" {
		head = append(append(head, byte(len(h.Of))), h.Of...)
	}
	var mark []byte
	if h.Mark != (Mark{}) {
		mark = append([]byte{byte(Leaves) | sixth, markGrade}, marks[:]...)
		mark = append(mark, h.Mark[:]...)
	}
	room := min(max(mtu, minMTU), maxMTU) - len(head) - 2 - len(mark)
	for rest := h.Claims; len(rest) > 0; {
		size, n := 0, 0
		for n < len(rest) {
			one := 2 + rest[n].Address.BitLen()/8
			if size+one > room {
				break
			}
			size, n = size+one, n+1
		}
		b := append(frame(Group, from, EtherHeartbeat, len(head)+2+len(mark)+size), head...)
		b = binary.BigEndian.AppendUint16(b, uint16(n+len(mark)/markSize))
		b = append(b, mark...)
		for _, c := range rest[:n] {
			first := byte(c.State)
			if c.Address.Is6() {
				first |= sixth
			}
			b = append(append(b, first, c.Grade), c.Address.AsSlice()...)
		}
		frames = append(frames, pad(b))
		rest = rest[n:]
	}
	return frames
}

// pad makes a frame as long as Ethernet has them.
func pad(b []byte) []byte {
	if n := minFrame - len(b); n > 0 {
		b = append(b, make([]byte, n)...)
	}
	return b
}

// ReadHeartbeat reads a frame, and from which Ethernet address it came. What is not for all nodes is none: what one node
// hears all are to hear, so that whose name it has sees that it is another's.
func ReadHeartbeat(b []byte) (h Heartbeat, from MAC, err error) {
	whole := b
	from, b, err = open(b, EtherHeartbeat)
	if err != nil {
		return h, from, err
	}
	if to := MAC(whole); to != Group {
		return h, from, fmt.Errorf("it is for %s, and heartbeats are for %s", to, Group)
	}
	if len(b) < fixed || string(b[:len(magic)]) != magic {
		return h, from, errors.New("it is no heartbeat of Weft's")
	}
	v := b[len(magic)]
	if v != version && v != repeated {
		return h, from, fmt.Errorf("it is a heartbeat of version %d, and %d and %d are known", v, version, repeated)
	}
	if h.Node, b, err = name(b[len(magic)+1:]); err == nil && v == repeated {
		h.Of, b, err = name(b)
	}
	if err != nil {
		return h, from, err
	}
	n := int(binary.BigEndian.Uint16(b))
	if b = b[2:]; n == 0 || n*6 > len(b) {
		return h, from, fmt.Errorf("it has no room for %d addresses", n)
	}
	h.Claims = make([]Claim, 0, n)
	for range n {
		if len(b) < 2 {
			return h, from, errors.New("it ends within an address")
		}
		head, size := b[0], 4
		if head&sixth != 0 {
			size = 16
		}
		if head&^(sixth|stateBits) != 0 || len(b) < 2+size {
			return h, from, errors.New("it has an address that cannot be read")
		}
		if size == 16 && State(head&stateBits) == Leaves && b[1] == markGrade && [8]byte(b[2:]) == marks {
			mark := Mark(b[2+len(marks):])
			if h.Mark != (Mark{}) || mark == (Mark{}) || len(h.Claims) > 0 {
				return h, from, errors.New("it does not say once, before its addresses, which cluster it is of")
			}
			h.Mark, b = mark, b[markSize:]
			continue
		}
		a, _ := netip.AddrFromSlice(b[2 : 2+size])
		if !Answerable(a) {
			return h, from, fmt.Errorf("it has %s, which nobody answers for", a)
		}
		h.Claims = append(h.Claims, Claim{Address: a, State: State(head & stateBits), Grade: b[1]})
		b = b[2+size:]
	}
	if len(h.Claims) == 0 {
		return h, from, errors.New("it speaks of no address")
	}
	for _, c := range b {
		if c != 0 {
			return h, from, errors.New("something follows its addresses")
		}
	}
	return h, from, nil
}

// name takes a node's name from the front of a heartbeat, behind which is more.
func name(b []byte) (node string, rest []byte, err error) {
	length := int(b[0])
	if b = b[1:]; length == 0 || length > MaxNode || len(b) < length+2 {
		return "", nil, errors.New("the name of its node does not fit")
	}
	return string(b[:length]), b[length:], nil
}

// Answerable reports whether one machine on a link can answer for an address.
func Answerable(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && !a.IsLinkLocalUnicast() &&
		!(a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240))
}
