package plan

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The text form has a line for each entry, in key order: words separated by
// spaces, the entry's origin after #. Fields that are zero are left out. A
// name that is not plain is quoted as in Go. Parse reads it back.

// String returns the text form of the whole plan.
func (p *Plan) String() string {
	b, _ := p.AppendText(nil)
	return string(b)
}

// AppendText appends the text form of the whole plan. It never fails.
func (p *Plan) AppendText(b []byte) ([]byte, error) {
	if p == nil {
		p = &Plan{}
	}
	b = p.Local.appendLines(b, "")
	b = appendLines(b, p.Networks.All())
	b = appendLines(b, p.Peers.All())
	b = appendLines(b, p.Endpoints.All())
	b = appendLines(b, p.Routes.All())
	b = appendLines(b, p.Tags.All())
	b = appendLines(b, p.Classes.All())
	b = appendLines(b, p.Within.All())
	b = appendLines(b, p.Verdicts.All())
	b = appendLines(b, p.Services.All())
	b = appendLines(b, p.Backends.All())
	b = appendLines(b, p.Sources.All())
	return appendLines(b, p.Egress.All()), nil
}

// FormatAll returns the text form of several plans, in the order of their
// names, an empty line between them. ParseAll reads it back.
func FormatAll(plans map[string]*Plan) string {
	var b []byte
	for i, name := range slices.Sorted(maps.Keys(plans)) {
		if i > 0 {
			b = append(b, '\n')
		}
		b, _ = plans[name].AppendText(b)
	}
	return string(b)
}

// String returns the diff as lines of the text form, each after "- " for what
// goes and "+ " for what comes.
func (d Diff) String() string {
	var b []byte
	if d.Local {
		b = d.From.appendLines(b, "- ")
		b = d.To.appendLines(b, "+ ")
	}
	b = appendChanges(b, d.Networks)
	b = appendChanges(b, d.Peers)
	b = appendChanges(b, d.Endpoints)
	b = appendChanges(b, d.Routes)
	b = appendChanges(b, d.Tags)
	b = appendChanges(b, d.Classes)
	b = appendChanges(b, d.Within)
	b = appendChanges(b, d.Verdicts)
	b = appendChanges(b, d.Services)
	b = appendChanges(b, d.Backends)
	b = appendChanges(b, d.Sources)
	b = appendChanges(b, d.Egress)
	return string(b)
}

// String returns the lines that describe the node.
func (l Local) String() string { return string(l.appendLines(nil, "")) }

// Line returns the network's line of the text form, with its origin.
func (k NetworkKey) Line(n Network) string { return string(appendLine(nil, k, n)) }

// Line returns the peer's line of the text form, with its origin.
func (k PeerKey) Line(p Peer) string { return string(appendLine(nil, k, p)) }

// Line returns the endpoint's line of the text form, with its origin.
func (k EndpointKey) Line(e Endpoint) string { return string(appendLine(nil, k, e)) }

// Line returns the route's line of the text form, with its origin.
func (k RouteKey) Line(r Route) string { return string(appendLine(nil, k, r)) }

// Line returns the tagging's line of the text form, with its origin.
func (k TagKey) Line(t Tagging) string { return string(appendLine(nil, k, t)) }

// Line returns the membership's line of the text form, with its origin.
func (k ClassKey) Line(m Membership) string { return string(appendLine(nil, k, m)) }

// Line returns the line of the text form of a class and the one that it is within.
func (k WithinKey) Line(w Within) string { return string(appendLine(nil, k, w)) }

// Line returns the verdict's line of the text form, with its origin.
func (k VerdictKey) Line(v Verdict) string { return string(appendLine(nil, k, v)) }

// Line returns the frontend's line of the text form, with its origin.
func (k ServiceKey) Line(s Service) string { return string(appendLine(nil, k, s)) }

// Line returns the backend's line of the text form, with its origin.
func (k BackendKey) Line(b Backend) string { return string(appendLine(nil, k, b)) }

// Line returns the line of the text form of a prefix of clients, with its origin.
func (k SourceKey) Line(s Source) string { return string(appendLine(nil, k, s)) }

// Line returns the egress rule's line of the text form, with its origin.
func (k EgressKey) Line(e Egress) string { return string(appendLine(nil, k, e)) }

// entryKey is a key that knows how an entry of its table is written: without
// origin and end of line, and the origin.
type entryKey[V any] interface {
	appendEntry(l line, v V) line
	origin(v V) string
}

// entry is the text of an entry without its origin.
func entry[K entryKey[V], V any](k K, v V) string { return string(k.appendEntry(nil, v)) }

func appendLine[K entryKey[V], V any](b []byte, k K, v V) []byte {
	// The entry is written to a line of its own, since a line begins without
	// a space.
	b = append(b, k.appendEntry(make(line, 0, 256), v)...)
	if o := k.origin(v); o != "" {
		b = append(b, " # "...)
		if plainOrigin(o) {
			b = append(b, o...)
		} else {
			b = strconv.AppendQuote(b, o)
		}
	}
	return b
}

func appendLines[K entryKey[V], V any](b []byte, entries iter.Seq2[K, V]) []byte {
	for k, v := range entries {
		b = append(appendLine(b, k, v), '\n')
	}
	return b
}

func appendChanges[K entryKey[V], V any](b []byte, changes []Change[K, V]) []byte {
	for _, c := range changes {
		if c.Old != nil {
			b = append(appendLine(append(b, "- "...), c.Key, *c.Old), '\n')
		}
		if c.New != nil {
			b = append(appendLine(append(b, "+ "...), c.Key, *c.New), '\n')
		}
	}
	return b
}

func (l Local) appendLines(b []byte, prefix string) []byte {
	var n line
	n = n.keyword("node").name(l.Node).addresses("addresses", l.Addresses).addresses("reached-at", l.ReachedAt)
	if l.MTU != 0 {
		n = n.keyword("mtu").keyword(strconv.Itoa(l.MTU))
	}
	n = n.flag("services-left", l.ServicesLeft)
	b = append(append(append(b, prefix...), n...), '\n')
	for _, p := range l.Pools {
		n = n[:0].keyword("pool").name(p.Network).name(p.Prefix.String()).address("gateway", p.Gateway).option("tunnel", p.Tunnel).flag("closed", p.Closed)
		b = append(append(append(b, prefix...), n...), '\n')
	}
	for _, t := range l.Tunnels {
		n = n[:0].keyword("tunnel").name(t.Name).number("port", uint64(t.Port)).
			address("vtep", t.VTEP).mac(t.MAC).flag("carries-tags", t.CarriesTags).option("only", string(t.Only))
		b = append(append(append(b, prefix...), n...), '\n')
	}
	return b
}

func (NetworkKey) origin(n Network) string { return n.Origin }

func (k NetworkKey) appendEntry(l line, n Network) line {
	l = l.keyword("network").name(k.Name).keyword("in").name(k.Tunnel).keyword("vni").keyword(strconv.FormatUint(uint64(n.FirstVNI), 10))
	if n.LastVNI != n.FirstVNI {
		l = strconv.AppendUint(append(l, '-'), uint64(n.LastVNI), 10)
	}
	return l
}

func (PeerKey) origin(p Peer) string { return p.Origin }

func (k PeerKey) appendEntry(l line, p Peer) line {
	l = l.keyword("peer").name(k.Name).addresses("addresses", p.Addresses)
	if len(p.Ends) > 0 {
		l = l.keyword("ends").list(len(p.Ends), func(l line, i int) line {
			e := p.Ends[i]
			l = append(l.quoted(e.Tunnel), '@').quoted(e.VTEP.String())
			l = append(append(l, '@'), e.MAC.String()...)
			if e.Key.IsZero() {
				return l
			}
			return append(append(l, '@'), e.Key.String()...)
		})
	}
	l = l.flag("carries-tags", p.CarriesTags)
	if len(p.Plain) > 0 {
		l = l.keyword("plain").list(len(p.Plain), func(l line, i int) line { return l.quoted(string(p.Plain[i])) })
	}
	return l
}

func (EndpointKey) origin(e Endpoint) string { return e.Origin }

func (k EndpointKey) appendEntry(l line, e Endpoint) line {
	l = l.keyword("endpoint").name(k.Interface).option("network", e.Network).addresses("addresses", e.Addresses).
		mac(e.MAC).number("tag", uint64(e.Tag)).option("name", e.Name)
	l = l.flag("anti-spoof", e.AntiSpoof)
	return l.option("ingress-policy", e.IngressPolicy).option("egress-policy", e.EgressPolicy).
		number("ingress-rate", e.IngressRate).number("egress-rate", e.EgressRate)
}

func (RouteKey) origin(r Route) string { return r.Origin }

func (k RouteKey) appendEntry(l line, r Route) line {
	l = l.keyword("route").name(k.Network).name(k.Prefix.String()).name(string(r.Way))
	peers := func(l line) line {
		return l.list(len(r.Peers), func(l line, i int) line { return l.quoted(r.Peers[i]) })
	}
	// The way's own operand follows it; what else is set has its name before.
	iface, others := r.Interface, len(r.Peers) > 0
	switch r.Way {
	case ToEndpoint:
		l, iface = l.name(iface), ""
	case ToTunnel, ToNextHop:
		if others = false; len(r.Peers) == 0 {
			l = l.name("") // which Validate refuses
		} else {
			l = peers(l)
		}
	}
	l = l.option("interface", iface)
	if others {
		l = peers(l.keyword("peers"))
	}
	return l.flag("endpoints-only", r.EndpointsOnly)
}

func (TagKey) origin(t Tagging) string { return t.Origin }

func (k TagKey) appendEntry(l line, t Tagging) line {
	return l.keyword("tag").name(k.Network).name(k.Prefix.String()).keyword(strconv.FormatUint(uint64(t.Tag), 10))
}

func (ClassKey) origin(m Membership) string { return m.Origin }

func (k ClassKey) appendEntry(l line, m Membership) line {
	return l.keyword("class").name(k.Network).name(k.Prefix.String()).keyword(m.Class.String())
}

func (WithinKey) origin(Within) string { return "" }

func (k WithinKey) appendEntry(l line, v Within) line {
	return l.keyword("within").keyword(k.Class.String()).keyword(v.Class.String())
}

func (VerdictKey) origin(v Verdict) string { return v.Origin }

func (k VerdictKey) appendEntry(l line, v Verdict) line {
	l = l.keyword("verdict").name(k.Policy).name(string(k.Direction))
	if k == Otherwise(k.Policy, k.Direction) {
		l = l.keyword("otherwise")
	} else {
		l = l.keyword(peerWord(k.Direction)).keyword(k.Peer.String()).keyword(k.Protocol.String())
		if k.Ports != AllPorts {
			l = l.keyword(k.Ports.String())
		}
	}
	if v.Like != 0 {
		return l.keyword("like").keyword(v.Like.String())
	}
	if v.Allow {
		return l.keyword("allow")
	}
	return l.keyword("deny")
}

// peerWord is the word before the peer of a verdict.
func peerWord(d Direction) string {
	if d == Outgoing {
		return "to"
	}
	return "from"
}

func (ServiceKey) origin(s Service) string { return s.Origin }

func (k ServiceKey) appendEntry(l line, s Service) line {
	l = l.keyword("service").name(k.Network).name(k.Address.String()).keyword(k.Protocol.String())
	if k.Protocol != AnyProtocol || k.Port != 0 {
		l = l.keyword(strconv.Itoa(int(k.Port)))
	}
	l = l.option("from", string(k.From)).option("to", s.Set).option("else", string(s.Otherwise))
	if s.Affinity != 0 {
		l = l.keyword("affinity").keyword(s.Affinity.String())
	}
	if s.Masquerade != 0 {
		l = l.keyword("masquerade").keyword(s.Masquerade.String())
	}
	l = l.option("sources", s.Sources)
	if s.Here {
		l = l.keyword("here")
	}
	return l
}

func (BackendKey) origin(b Backend) string { return b.Origin }

func (k BackendKey) appendEntry(l line, b Backend) line {
	l = l.keyword("backend").name(k.Network).name(k.Set).name(netip.AddrPortFrom(k.Address, k.Port).String())
	if b.Node != "" {
		l = append(l, '@').quoted(b.Node)
	}
	if b.Weight != 1 {
		l = l.keyword("weight").keyword(strconv.Itoa(int(b.Weight)))
	}
	if b.Affinity {
		l = l.keyword("affinity")
	}
	return l
}

func (SourceKey) origin(s Source) string { return s.Origin }

func (k SourceKey) appendEntry(l line, s Source) line {
	return l.keyword("source").name(k.Network).name(k.Name).name(k.Prefix.String())
}

func (EgressKey) origin(e Egress) string { return e.Origin }

func (k EgressKey) appendEntry(l line, e Egress) line {
	l = l.keyword("egress").name(k.Network)
	switch {
	case k.Interface != "":
		l = l.keyword("endpoint").name(k.Interface)
	case k.Tagged:
		l = l.keyword("tag").keyword(strconv.FormatUint(uint64(k.Tag), 10))
	default:
		l = l.keyword("any")
	}
	l = l.name(k.Destination.String()).name(string(e.Action))
	source, node := "", e.Node
	if e.Source.IsValid() {
		source = e.Source.String()
	}
	switch e.Action {
	case SourceNAT:
		l, source = l.name(source), ""
	case ViaNode:
		l, node = l.name(node), ""
	}
	return l.option("source", source).option("node", node)
}

// line is a line of the text form being written, word by word.
type line []byte

// keyword appends a word that needs no quotes.
func (l line) keyword(s string) line {
	if len(l) > 0 {
		l = append(l, ' ')
	}
	return append(l, s...)
}

// name appends a word that may be anything.
func (l line) name(s string) line { return append(l, ' ').quoted(s) }

// option appends a keyword and its value, or nothing where that is empty.
func (l line) option(keyword, value string) line {
	if value == "" {
		return l
	}
	return l.keyword(keyword).name(value)
}

func (l line) number(keyword string, n uint64) line {
	if n == 0 {
		return l
	}
	return strconv.AppendUint(append(l.keyword(keyword), ' '), n, 10)
}

func (l line) flag(keyword string, set bool) line {
	if !set {
		return l
	}
	return l.keyword(keyword)
}

func (l line) address(keyword string, a netip.Addr) line {
	if !a.IsValid() {
		return l
	}
	return l.keyword(keyword).name(a.String())
}

func (l line) addresses(keyword string, as []netip.Addr) line {
	if len(as) == 0 {
		return l
	}
	return l.keyword(keyword).list(len(as), func(l line, i int) line { return l.quoted(as[i].String()) })
}

func (l line) mac(m MAC) line {
	if m.IsZero() {
		return l
	}
	return l.keyword("mac").keyword(m.String())
}

// list appends one word of n items with commas between them.
func (l line) list(n int, item func(l line, i int) line) line {
	l = append(l, ' ')
	for i := range n {
		if i > 0 {
			l = append(l, ',')
		}
		l = item(l, i)
	}
	return l
}

// quoted appends s without a space before it, in quotes unless it is plain.
func (l line) quoted(s string) line {
	if plainName(s) {
		return append(l, s...)
	}
	return strconv.AppendQuote(l, s)
}

// plainName reports whether s means itself in the text form.
func plainName(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= utf8.RuneSelf-1 || strings.IndexByte(`"#,@\`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// plainOrigin reports whether s means itself after the # of the text form.
func plainOrigin(s string) bool {
	for _, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return false
		}
	}
	return s[0] != '"' && s[0] != ' ' && s[len(s)-1] != ' '
}
