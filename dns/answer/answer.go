// Package answer answers questions about names, by what package records says that the names
// of a cluster stand for. It is a function of the question, of who asks, and of a Zone: it
// opens no socket, asks nobody and looks at no clock.
package answer

import (
	"net/netip"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/records"
)

// Zone is what questions are answered by. The zero Zone has no domain, and answers for no name
// itself. Its methods may be called by several goroutines at once.
type Zone struct{}

// Put adds a Service, in the place of the one with its key. It is not to be changed any more.
func (z *Zone) Put(s *records.Service) {}

// Delete removes a Service, if it is there.
func (z *Zone) Delete(k records.Key) {}

// Set says how questions are answered from now on. The settings are not to be changed any more.
func (z *Zone) Set(s *records.Settings) {}

// PutClient adds a pod of the node, in the place of the one with its address.
func (z *Zone) PutClient(c records.Client) {}

// DeleteClient removes the pod that has an address, if it is there.
func (z *Zone) DeleteClient(a netip.Addr) {}

// Asker is who asks, and how.
type Asker struct {
	// Address is where the question came from; 4-in-6 addresses mean the IPv4 ones.
	Address netip.Addr
	// Stream says that the reply may be of 64 KiB, as by TCP. Otherwise it is a datagram, and
	// what does not fit into the one that the question allows is left out (RFC 1035, section
	// 4.2.1; RFC 6891, section 6.2.5).
	Stream bool
}

// Answer returns the reply to a query, or what others are to be asked for it. Both are nil for
// what is no query, and gets no reply. A reply fits its way, and need only be packed. The
// query is not changed, and the reply shares nothing with it that may be.
func (z *Zone) Answer(query *dns.Msg, from Asker) (reply *dns.Msg, outside *Outside) {
	reply = new(dns.Msg)
	reply.SetRcode(query, dns.RcodeServerFailure)
	return reply, nil
}

// Outside is a query for whose answer others have to be asked. Take its Question to them, and
// what they say to Take, until that returns the reply. It is for one goroutine.
type Outside struct{}

// Question is what others are to be asked now: one question, whose name is fully qualified and
// as the asker wrote it. The message has neither an id nor EDNS0, but RD, CD and AD as the
// asker has them.
func (o *Outside) Question() *dns.Msg { return nil }

// Take takes what others said to Question, nil where nobody did. It returns the reply to the
// query, or nil where Question is another one now. said is not changed.
func (o *Outside) Take(said *dns.Msg) (reply *dns.Msg) { return nil }

// Read reads what came as a packet. What cannot be read has a reply (FORMERR) in the place of a
// query; neither is returned of what gets none, as it is too short or a reply itself.
func Read(packet []byte) (query, reply *dns.Msg) { return nil, nil }
