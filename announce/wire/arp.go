package wire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// ARP is a packet of ARP for IPv4 on Ethernet (RFC 826).
type ARP struct {
	// Reply says that it is one; else it is a request.
	Reply bool
	// The sender's and the target's addresses. A probe (RFC 5227, section 1.1) is a request
	// whose sender has no IPv4 address, 0.0.0.0.
	SenderMAC, TargetMAC MAC
	Sender, Target       netip.Addr
}

// arpLength is that of such a packet, and arpHead its first bytes: Ethernet, IPv4 and how long
// an address of either is.
const arpLength = 28

var arpHead = [...]byte{0, 1, 8, 0, 6, 4}

const (
	arpRequest = 1
	arpReply   = 2
)

// Frame writes it, to an Ethernet address.
func (p ARP) Frame(to MAC) []byte {
	b := frame(to, p.SenderMAC, EtherARP, minFrame-headerLength)
	b = append(b, arpHead[:]...)
	operation := uint16(arpRequest)
	if p.Reply {
		operation = arpReply
	}
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, p.SenderMAC[:]...), p.Sender.AsSlice()...)
	b = append(append(b, p.TargetMAC[:]...), p.Target.AsSlice()...)
	return pad(b)
}

// ReadARP reads a frame. Who sends it under another Ethernet address than it says in the
// packet is not heard.
func ReadARP(b []byte) (p ARP, err error) {
	from, b, err := open(b, EtherARP)
	if err != nil {
		return p, err
	}
	if len(b) < arpLength || [len(arpHead)]byte(b) != arpHead {
		return p, errors.New("it is no ARP for IPv4 on Ethernet")
	}
	switch binary.BigEndian.Uint16(b[6:]) {
	case arpRequest:
	case arpReply:
		p.Reply = true
	default:
		return p, errors.New("it is neither an ARP request nor a reply")
	}
	p.SenderMAC, p.TargetMAC = MAC(b[8:]), MAC(b[18:])
	p.Sender, p.Target = netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	if p.SenderMAC != from {
		return p, errors.New("its sender says that it is another one")
	}
	return p, nil
}

// zero4 is what a probe's sender has for an address.
var zero4 = netip.AddrFrom4([4]byte{})

// ProbeARP asks who has an address before one takes it, so that nobody learns anything from
// the question.
func ProbeARP(from MAC, a netip.Addr) []byte {
	return ARP{SenderMAC: from, Sender: zero4, Target: a}.Frame(Broadcast)
}

// IsProbe reports whether it asks whether anybody has an address, as who is about to take it does.
func (p ARP) IsProbe() bool { return !p.Reply && p.Sender == zero4 }

// AnnounceARP tells all on the link who has an address, in the two forms of which some learn
// from the one alone, and others from the other.
func AnnounceARP(from MAC, a netip.Addr) [][]byte {
	p := ARP{SenderMAC: from, Sender: a, Target: a}
	request := p.Frame(Broadcast)
	p.Reply, p.TargetMAC = true, from
	return [][]byte{request, p.Frame(Broadcast)}
}

// Answer answers a request for the sender's Ethernet address.
func (p ARP) Answer(from MAC) []byte {
	return ARP{Reply: true, SenderMAC: from, Sender: p.Target, TargetMAC: p.SenderMAC, Target: p.Sender}.Frame(p.SenderMAC)
}
