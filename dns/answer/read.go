package answer

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// MaxQuery is how long a query is at most, in bytes. A name takes 255 of them, and what resolvers
// add to it a few hundred.
const MaxQuery = 2048

// Sizes of parts of a message, in bytes (RFC 1035, sections 4.1.1 to 4.1.3).
const (
	headerSize = 12
	// questionSize is that of a question behind its name, and recordSize that of a record behind
	// its name and before its data.
	questionSize, recordSize = 4, 10
)

// Read reads what came as a packet. What cannot be read has a reply (FORMERR) in the place of a
// query; neither is returned of what gets none, as it is too short or a reply itself.
//
// A query has its header, its one question, and its EDNS0 without options, as nothing else counts.
// Other records are passed over, and those of a query's answer are refused: compressed, they say
// hundreds of times what was sent, and who asks much would have others wait. Of a query of another
// kind than for names there is no more than its header, where its question cannot be read.
func Read(packet []byte) (query, reply *dns.Msg) {
	if len(packet) < headerSize || packet[2]&0x80 != 0 {
		return nil, nil
	}
	q := new(dns.Msg)
	q.Id, q.Opcode = binary.BigEndian.Uint16(packet), int(packet[2]>>3&0xf)
	q.Authoritative, q.Truncated, q.RecursionDesired = packet[2]&4 != 0, packet[2]&2 != 0, packet[2]&1 != 0
	q.RecursionAvailable, q.Zero, q.Rcode = packet[3]&0x80 != 0, packet[3]&0x40 != 0, int(packet[3]&0xf)
	q.AuthenticatedData, q.CheckingDisabled = packet[3]&0x20 != 0, packet[3]&0x10 != 0
	if len(packet) <= MaxQuery && readBody(packet, q) || q.Opcode != dns.OpcodeQuery {
		return q, nil
	}
	r := new(dns.Msg)
	r.Id, r.Response, r.Opcode, r.RecursionDesired, r.Rcode = q.Id, true, q.Opcode, q.RecursionDesired, dns.RcodeFormatError
	return nil, r
}

// readBody reads what is behind a query's header, and reports whether that is right.
func readBody(packet []byte, q *dns.Msg) bool {
	count := func(section int) int { return int(binary.BigEndian.Uint16(packet[4+2*section:])) }
	end, compressed, ok := passName(packet, headerSize)
	// Before the first name there is nothing that it could point to.
	if count(0) != 1 || !ok || compressed || end+questionSize > len(packet) {
		return false
	}
	name, _, err := dns.UnpackDomainName(packet[:end], headerSize)
	if err != nil {
		return false
	}
	q.Question = []dns.Question{{Name: name, Qtype: binary.BigEndian.Uint16(packet[end:]), Qclass: binary.BigEndian.Uint16(packet[end+2:])}}
	if q.Opcode != dns.OpcodeQuery {
		return true
	}
	if count(1) > 0 {
		return false
	}
	at, authorities := end+questionSize, count(2)
	for i := range authorities + count(3) {
		end, _, ok := passName(packet, at)
		if !ok || end+recordSize > len(packet) {
			return false
		}
		rrtype, size := binary.BigEndian.Uint16(packet[end:]), binary.BigEndian.Uint16(packet[end+8:])
		root := packet[at] == 0
		if at = end + recordSize + int(size); at > len(packet) {
			return false
		}
		if rrtype != dns.TypeOPT || i < authorities {
			continue
		}
		if !root || len(q.Extra) > 0 { // RFC 6891, section 6.1.1
			return false
		}
		q.Extra = []dns.RR{&dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: rrtype, Class: binary.BigEndian.Uint16(packet[end+2:]), Ttl: binary.BigEndian.Uint32(packet[end+4:])}}}
	}
	return true
}

// passName returns where a name ends, without following what it points to; compressed says that
// it does point somewhere.
func passName(packet []byte, at int) (end int, compressed, ok bool) {
	for at < len(packet) {
		switch size := int(packet[at]); {
		case size == 0:
			return at + 1, false, true
		case size >= 0xc0:
			return at + 2, true, at+2 <= len(packet)
		case size >= 0x40:
			return 0, false, false // RFC 6891, section 5
		default:
			at += 1 + size
		}
	}
	return 0, false, false
}
