package plan

import (
	"cmp"
	"iter"
	"net/netip"
	"strings"
	"time"
)

// ServiceKey is a frontend: what clients send to.
type ServiceKey struct {
	Network string
	Address netip.Addr
	// Protocol and Port are those of the clients' packets. AnyProtocol, which has no
	// port, is all of the address that is no other frontend's.
	Protocol Protocol
	Port     uint16
	// From says for whose packets the frontend holds. One that holds for everybody's
	// has no other of the same address, protocol and port beside it.
	From Scope
}

// Compare orders keys.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(strings.Compare(k.Network, o.Network), k.Address.Compare(o.Address),
		cmp.Compare(k.Protocol, o.Protocol), cmp.Compare(k.Port, o.Port), strings.Compare(string(k.From), string(o.From)))
}

// Scope is a side from which packets come to a frontend.
type Scope string

// The scopes.
const (
	// Anywhere is either of the others.
	Anywhere Scope = ""
	// Inside is what the node and its endpoints send.
	Inside Scope = "inside"
	// Outside is all else, what other nodes and their endpoints send among it: an answer must go
	// back by way of this node.
	Outside Scope = "outside"
)

// Clients are kinds of those who send to a frontend, one bit each. The node itself is of
// none.
type Clients uint8

// The kinds of clients.
const (
	// FromEndpoints are endpoints, of this node and of others.
	FromEndpoints Clients = 1 << iota
	// FromStrangers are all others that are outside.
	FromStrangers
	// FromAll are both.
	FromAll = FromEndpoints | FromStrangers
)

// clientWords are the kinds of senders in the text form.
var clientWords = []struct {
	one  Clients
	word string
}{{FromEndpoints, "endpoints"}, {FromStrangers, "strangers"}}

// String returns the kinds as the text form has them, with commas between them.
func (c Clients) String() string {
	var words []string
	for _, w := range clientWords {
		if c&w.one != 0 {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, ",")
}

// clientsOf returns the kind that a word of the text form stands for.
func clientsOf(word string) (Clients, bool) {
	for _, w := range clientWords {
		if w.word == word {
			return w.one, true
		}
	}
	return 0, false
}

// Service is what becomes of packets to a frontend. What begins a connection goes to one
// of a set of backends, and the rest of the connection goes there, too. Each node asks
// the table for itself of what comes to it, once; so one that hands a packet to another
// leaves that one's frontends to it.
type Service struct {
	// Set names the backends (see BackendKey), of the frontend's network; those of the
	// other family are never chosen. Empty stands for a set without backends.
	Set string
	// Otherwise says what becomes of packets where none of the set may be chosen.
	Otherwise Refusal
	// Affinity has a client's connections, as its address tells it, go to the same
	// backend of the set until it has begun none for this long, where that backend has Affinity; 0 means
	// not at all. The frontends of a set share what is remembered.
	Affinity time.Duration
	// Masquerade are those whose packets get the node's address as their source that the
	// node itself would send to the backend from, where they go to an endpoint or off the
	// node. Nobody's do that go to the node itself, and those of who is his own backend do
	// in any case. So do the node's own packets, but where strangers keep their source and it
	// is one at which the node is reached (see Local.ReachedAt): that stays.
	Masquerade Clients
	// Sources names those who may send to the frontend at all (see SourceKey); empty is
	// everybody. What others send is dropped.
	Sources string
	// Here says that the node itself answers, by a program of its own that listens at the
	// frontend's address and port, in place of a backend. Nothing is translated, and no
	// connection is tracked: each packet is judged by itself, by the egress policy of the
	// endpoint that sends it, with the frontend as its destination. What the node answers
	// leaves with the frontend's address as its source, and is as all that a node sends to
	// its own endpoints: no ingress policy is asked.
	//
	// Such a frontend is Inside, as nodes answer nobody but themselves and their endpoints.
	// Its address need not be one of the node's. Where it is none, the node takes for itself
	// all that is sent there: what is for no other frontend of the address is dropped, whichever
	// programs listen at all addresses. So is what anybody else sends under the address, also
	// endpoints that may use others'.
	Here bool
	// Origin says where the entry comes from, as "Service default/web".
	Origin string
}

// Equal reports whether both are the same in every field.
func (s Service) Equal(o Service) bool { return s == o }

// Refusal is how a frontend without backends treats packets.
type Refusal string

// The refusals.
const (
	// Refuse tells the client that nobody is there.
	Refuse Refusal = ""
	// Silence drops what it sends.
	Silence Refusal = "drop"
)

// done says for people what becomes of a packet.
func (r Refusal) done() string {
	if r == Silence {
		return "dropped"
	}
	return "refused"
}

// BackendKey is a member of a set of backends.
type BackendKey struct {
	Network string
	Set     string
	Address netip.Addr
	Port    uint16
}

// Compare orders keys.
func (k BackendKey) Compare(o BackendKey) int {
	return cmp.Or(strings.Compare(k.Network, o.Network), strings.Compare(k.Set, o.Set),
		k.Address.Compare(o.Address), cmp.Compare(k.Port, o.Port))
}

// Backend is where a connection to a frontend may go.
type Backend struct {
	// Node is the node that the backend runs on, where known.
	Node string
	// Weight is how often it is chosen, beside the weights of the others, up to
	// MaxWeight. One with 0 gets no connection any more, and keeps those that it has.
	// Connections of a frontend to it end when it has left the frontend's set; those of TCP and SCTP
	// once it has been out of all sets of frontends that have the same origin for some seconds.
	Weight uint16
	// Affinity says that clients of frontends with an affinity are remembered to have this backend. A
	// connection that goes to one without it is drawn for itself alone, as where its client has never come before. So
	// a set may have come to remember clients in part only.
	Affinity bool
	// Origin says where the entry comes from, as "EndpointSlice default/web-x7k2p".
	Origin string
}

// MaxWeight is the greatest weight of a backend.
const MaxWeight = 256

// Equal reports whether both are the same in every field.
func (b Backend) Equal(o Backend) bool { return b == o }

// SourceKey is a prefix of those who may send to frontends. So what one Service says of
// its clients is there once for all of its frontends.
type SourceKey struct {
	Network string
	// Name is what Service.Sources calls them by. A name without prefixes is nobody.
	Name string
	// Prefix is masked.
	Prefix netip.Prefix
}

// Compare orders keys.
func (k SourceKey) Compare(o SourceKey) int {
	return cmp.Or(strings.Compare(k.Network, o.Network), strings.Compare(k.Name, o.Name), comparePrefix(k.Prefix, o.Prefix))
}

// Source says where a prefix of clients comes from.
type Source struct {
	// Origin is as "Service default/web".
	Origin string
}

// Equal reports whether both are the same.
func (s Source) Equal(o Source) bool { return s == o }

// Service returns the frontend to which a packet goes, if it goes to any: the one of its
// protocol and port before that of all of the address.
func (p *Plan) Service(network string, a netip.Addr, protocol Protocol, port uint16, from Scope) (ServiceKey, Service, bool) {
	k := ServiceKey{Network: network, Address: a, Protocol: protocol, Port: port}
	for _, all := range []bool{false, true} {
		if all {
			k.Protocol, k.Port = AnyProtocol, 0
		}
		for _, k.From = range []Scope{Anywhere, from} {
			if s, ok := p.Services.Get(k); ok {
				return k, s, true
			}
		}
	}
	return ServiceKey{}, Service{}, false
}

// BackendsOf yields the members of a set, in key order.
func (p *Plan) BackendsOf(network, set string) iter.Seq2[BackendKey, Backend] {
	return func(yield func(BackendKey, Backend) bool) {
		for k, b := range p.Backends.From(BackendKey{Network: network, Set: set}) {
			if k.Network != network || k.Set != set || !yield(k, b) {
				return
			}
		}
	}
}

// Admits reports whether an address is of those that Service.Sources calls by a name.
func (p *Plan) Admits(network, sources string, a netip.Addr) bool {
	if sources == "" {
		return true
	}
	_, _, ok := around(p.Sources, netip.PrefixFrom(a, a.BitLen()),
		func(prefix netip.Prefix) SourceKey { return SourceKey{network, sources, prefix} },
		func(k SourceKey) (netip.Prefix, bool) { return k.Prefix, k.Network == network && k.Name == sources },
		func(Source) bool { return true })
	return ok
}
