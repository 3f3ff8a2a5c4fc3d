package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Parse reads the text form of one plan. Empty lines, and lines that begin
// with #, mean nothing; the order of lines does not matter except that the
// node's line, if there is one, comes first. An error names the line, the
// value and what is expected instead. Parse does not Validate.
func Parse(text string) (*Plan, error) {
	all, err := parse(text)
	if err != nil {
		return nil, err
	}
	switch len(all) {
	case 0:
		return &Plan{}, nil
	case 1:
		return all[0].plan, nil
	default:
		return nil, fmt.Errorf("line %d: a second node line: the text of one plan is expected", all[1].line)
	}
}

// ParseAll reads the text form of several plans, each of which begins with
// its node's line, and returns them by the nodes' names.
func ParseAll(text string) (map[string]*Plan, error) {
	all, err := parse(text)
	if err != nil {
		return nil, err
	}
	plans := make(map[string]*Plan, len(all))
	for _, p := range all {
		name := p.plan.Local.Node
		if !p.hasNode {
			return nil, fmt.Errorf("line %d: an entry before the first node line: each plan must begin with one", p.line)
		}
		if _, ok := plans[name]; ok {
			return nil, fmt.Errorf("line %d: node %q has a plan already", p.line, name)
		}
		plans[name] = p.plan
	}
	return plans, nil
}

// parsed is a plan and the line on which its text begins.
type parsed struct {
	plan    *Plan
	line    int
	hasNode bool
}

func parse(text string) ([]parsed, error) {
	var all []parsed
	number := 0
	for s := range strings.Lines(text) {
		number++
		sc, origin, err := scan(strings.TrimRight(s, "\r\n"))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if len(sc.words) == 0 {
			continue
		}
		isNode := sc.words[0] == "node"
		if isNode || len(all) == 0 {
			all = append(all, parsed{plan: &Plan{}, line: number, hasNode: isNode})
		}
		all[len(all)-1].plan.parseLine(sc, origin)
		if sc.err != nil {
			return nil, fmt.Errorf("line %d: %w", number, sc.err)
		}
	}
	return all, nil
}

// parseLine puts what a line says into the plan, or says in s.err why not.
func (p *Plan) parseLine(s *scanner, origin string) {
	kind := s.word("a kind of entry")
	if slices.Contains([]string{"node", "pool", "tunnel", "within"}, kind) && origin != "" {
		s.fail("a line that begins with %s has no origin after #", kind)
	}
	switch kind {
	case "node":
		p.Local.Node = s.name("the node's name")
		s.options(map[string]func(){
			"addresses":     func() { p.Local.Addresses = s.addresses() },
			"reached-at":    func() { p.Local.ReachedAt = s.addresses() },
			"services-left": func() { p.Local.ServicesLeft = true },
			"mtu":           func() { p.Local.MTU = int(s.number("an MTU in bytes", 31)) },
		})
	case "pool":
		pool := Pool{Network: s.name("a network"), Prefix: s.prefix()}
		s.options(map[string]func(){
			"gateway": func() { pool.Gateway = s.address() },
			"tunnel":  func() { pool.Tunnel = s.name("a tunnel") },
			"closed":  func() { pool.Closed = true },
		})
		p.Local.Pools = append(p.Local.Pools, pool)
	case "tunnel":
		t := Tunnel{Name: s.name("a tunnel")}
		s.options(map[string]func(){
			"port":         func() { t.Port = s.port() },
			"vtep":         func() { t.VTEP = s.address() },
			"mac":          func() { t.MAC = s.mac() },
			"carries-tags": func() { t.CarriesTags = true },
			"only":         func() { t.Only = Family(s.name("a family")) },
		})
		p.Local.Tunnels = append(p.Local.Tunnels, t)
	case "network":
		k, v := NetworkKey{Name: s.name("a network")}, Network{Origin: origin}
		s.oneOf("the word before a tunnel", "in")
		k.Tunnel = s.name("a tunnel")
		s.oneOf("what a network has", "vni")
		v.FirstVNI, v.LastVNI = s.vnis()
		s.options(nil)
		put(s, &p.Networks, k, v)
	case "peer":
		k, v := parsePeer(s, origin)
		put(s, &p.Peers, k, v)
	case "endpoint":
		k, v := parseEndpoint(s, origin)
		put(s, &p.Endpoints, k, v)
	case "route":
		k, v := parseRoute(s, origin)
		put(s, &p.Routes, k, v)
	case "tag":
		k := TagKey{Network: s.name("a network"), Prefix: s.prefix()}
		v := Tagging{Tag: s.tag(), Origin: origin}
		s.options(nil)
		put(s, &p.Tags, k, v)
	case "class":
		k := ClassKey{Network: s.name("a network"), Prefix: s.prefix()}
		v := Membership{Class: s.class(), Origin: origin}
		s.options(nil)
		put(s, &p.Classes, k, v)
	case "within":
		k, v := WithinKey{s.class()}, Within{s.class()}
		s.options(nil)
		put(s, &p.Within, k, v)
	case "verdict":
		k, v := parseVerdict(s, origin)
		put(s, &p.Verdicts, k, v)
	case "service":
		k, v := parseService(s, origin)
		put(s, &p.Services, k, v)
	case "backend":
		k, v := parseBackend(s, origin)
		put(s, &p.Backends, k, v)
	case "source":
		k, v := parseSource(s, origin)
		put(s, &p.Sources, k, v)
	case "egress":
		k, v := parseEgress(s, origin)
		put(s, &p.Egress, k, v)
	default:
		s.fail("%q begins no line: expected node, pool, tunnel, network, peer, endpoint, route, tag, class, within, verdict, service, backend, source or egress", kind)
	}
}

func put[K interface {
	TableKey[K]
	entryKey[V]
}, V TableValue[V]](s *scanner, t *Table[K, V], k K, v V) {
	if s.err != nil {
		return
	}
	if old, ok := t.Get(k); ok {
		s.fail("this entry is stated already, as: %s", entry(k, old))
		return
	}
	*t = t.Set(k, v)
}

func parseEndpoint(s *scanner, origin string) (EndpointKey, Endpoint) {
	k := EndpointKey{Interface: s.name("an interface")}
	e := Endpoint{Origin: origin}
	s.options(map[string]func(){
		"network":        func() { e.Network = s.name("a network") },
		"addresses":      func() { e.Addresses = s.addresses() },
		"mac":            func() { e.MAC = s.mac() },
		"tag":            func() { e.Tag = s.tag() },
		"name":           func() { e.Name = s.name("a name") },
		"anti-spoof":     func() { e.AntiSpoof = true },
		"ingress-policy": func() { e.IngressPolicy = s.name("a policy") },
		"egress-policy":  func() { e.EgressPolicy = s.name("a policy") },
		"ingress-rate":   func() { e.IngressRate = s.number("a rate in bit/s", 64) },
		"egress-rate":    func() { e.EgressRate = s.number("a rate in bit/s", 64) },
	})
	return k, e
}

func parsePeer(s *scanner, origin string) (PeerKey, Peer) {
	k := PeerKey{Name: s.name("a peer")}
	p := Peer{Origin: origin}
	s.options(map[string]func(){
		"addresses": func() { p.Addresses = s.addresses() },
		"ends": func() {
			for _, item := range s.list("ends of tunnels") {
				p.Ends = append(p.Ends, s.end(item))
			}
		},
		"carries-tags": func() { p.CarriesTags = true },
		"plain": func() {
			for _, name := range s.names("families") {
				p.Plain = append(p.Plain, Family(name))
			}
		},
	})
	return k, p
}

func parseRoute(s *scanner, origin string) (RouteKey, Route) {
	k := RouteKey{Network: s.name("a network"), Prefix: s.prefix()}
	r := Route{Origin: origin}
	r.Way = Way(s.oneOf("a way", string(ToEndpoint), string(ToTunnel), string(ToNextHop), string(ToHost), string(ToGateway), string(ToDrop)))
	options := map[string]func(){
		"interface":      func() { r.Interface = s.name("an interface") },
		"peers":          func() { r.Peers = s.names("names of peers") },
		"endpoints-only": func() { r.EndpointsOnly = true },
	}
	if operand, ok := map[Way]string{ToEndpoint: "interface", ToTunnel: "peers", ToNextHop: "peers"}[r.Way]; ok {
		options[operand]()
		delete(options, operand)
	}
	s.options(options)
	return k, r
}

func parseVerdict(s *scanner, origin string) (VerdictKey, Verdict) {
	policy := s.name("a policy")
	d := Direction(s.oneOf("a direction", string(Incoming), string(Outgoing)))
	k := Otherwise(policy, d)
	if s.oneOf("a peer", peerWord(d), "otherwise") != "otherwise" {
		k.Peer = s.class()
		k.Protocol = s.protocol()
		switch w := s.word("a port range, allow, deny or like"); w {
		case "allow", "deny", "like":
			s.back(w)
		default:
			ports, err := ParsePortRange(w)
			if err != nil {
				s.fail("%w", err)
			}
			k.Ports = ports
		}
	}
	v := Verdict{Origin: origin}
	switch s.oneOf("a verdict", "allow", "deny", "like") {
	case "allow":
		v.Allow = true
	case "like":
		if v.Like = s.class(); v.Like == 0 {
			s.fail("no peer is like class %s", v.Like)
		}
	}
	s.options(nil)
	return k, v
}

func parseService(s *scanner, origin string) (ServiceKey, Service) {
	k := ServiceKey{Network: s.name("a network"), Address: s.address(), Protocol: s.protocol()}
	if k.Protocol != AnyProtocol || len(s.words) > 0 && isNumber(s.words[0]) {
		k.Port = s.port()
	}
	v := Service{Origin: origin}
	s.options(map[string]func(){
		"from":       func() { k.From = Scope(s.oneOf("a side", string(Inside), string(Outside))) },
		"to":         func() { v.Set = s.name("a set of backends") },
		"else":       func() { v.Otherwise = Refusal(s.oneOf("a refusal", string(Silence))) },
		"affinity":   func() { v.Affinity = s.duration() },
		"masquerade": func() { v.Masquerade = s.clients() },
		"sources":    func() { v.Sources = s.name("a name of sources") },
		"here":       func() { v.Here = true },
	})
	return k, v
}

// isNumber reports whether a word is one of digits.
func isNumber(w string) bool { return '0' <= w[0] && w[0] <= '9' }

func parseBackend(s *scanner, origin string) (BackendKey, Backend) {
	k, v := BackendKey{Network: s.name("a network"), Set: s.name("a set of backends")}, Backend{Weight: 1, Origin: origin}
	k.Address, k.Port, v.Node = s.backend(s.word("a backend"))
	s.options(map[string]func(){
		"weight":   func() { v.Weight = uint16(s.number("a weight", 16)) },
		"affinity": func() { v.Affinity = true },
	})
	return k, v
}

func parseSource(s *scanner, origin string) (SourceKey, Source) {
	k := SourceKey{Network: s.name("a network"), Name: s.name("a name of sources"), Prefix: s.prefix()}
	s.options(nil)
	return k, Source{Origin: origin}
}

func parseEgress(s *scanner, origin string) (EgressKey, Egress) {
	k := EgressKey{Network: s.name("a network")}
	switch s.oneOf("the sources", "any", "tag", "endpoint") {
	case "tag":
		k.Tagged, k.Tag = true, s.tag()
	case "endpoint":
		k.Interface = s.name("an interface")
	}
	k.Destination = s.prefix()
	e := Egress{Origin: origin}
	e.Action = EgressAction(s.oneOf("an action", string(Direct), string(Masquerade), string(SourceNAT), string(ViaNode), string(Discard)))
	options := map[string]func(){
		"source": func() { e.Source = s.address() },
		"node":   func() { e.Node = s.name("a node") },
	}
	if operand, ok := map[EgressAction]string{SourceNAT: "source", ViaNode: "node"}[e.Action]; ok {
		options[operand]()
		delete(options, operand)
	}
	s.options(options)
	return k, e
}

// scanner reads the words of a line. After the first failure it returns zero
// values only.
type scanner struct {
	words []string // with their quotes
	err   error
}

// scan cuts a line into words and the origin.
func scan(s string) (*scanner, string, error) {
	sc := &scanner{}
	for {
		s = strings.TrimLeft(s, " \t")
		if s == "" {
			return sc, "", nil
		}
		if s[0] == '#' {
			if len(sc.words) == 0 {
				return sc, "", nil
			}
			origin := strings.Trim(s[1:], " \t")
			if strings.HasPrefix(origin, `"`) {
				unquoted, err := strconv.Unquote(origin)
				if err != nil {
					return sc, "", fmt.Errorf("origin %s is not quoted as Go does", origin)
				}
				origin = unquoted
			}
			return sc, origin, nil
		}
		word, rest, err := cut(s, " \t")
		if err != nil {
			return sc, "", err
		}
		sc.words = append(sc.words, word)
		s = rest
	}
}

// cut returns what is before and after the first of separators that is not
// within quotes.
func cut(s, separators string) (before, after string, err error) {
	for i := 0; i < len(s); i++ {
		if s[i] == '"' {
			q, err := strconv.QuotedPrefix(s[i:])
			if err != nil {
				return "", "", fmt.Errorf("the quotes in %s do not end, or hold what Go's do not", s[i:])
			}
			i += len(q) - 1
		} else if strings.IndexByte(separators, s[i]) >= 0 {
			return s[:i], s[i+1:], nil
		}
	}
	return s, "", nil
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
		s.words = nil
	}
}

// word returns the next word as it is written.
func (s *scanner) word(what string) string {
	if len(s.words) == 0 {
		s.fail("the line ends where %s is expected", what)
		return ""
	}
	w := s.words[0]
	s.words = s.words[1:]
	return w
}

// back puts a word back, so that it is the next again.
func (s *scanner) back(w string) {
	if s.err == nil {
		s.words = append([]string{w}, s.words...)
	}
}

// name returns the next word without its quotes.
func (s *scanner) name(what string) string { return s.unquote(s.word(what)) }

func (s *scanner) unquote(w string) string {
	if s.err != nil || w == "" || plainName(w) {
		return w
	}
	u, err := strconv.Unquote(w)
	if err != nil || w[0] != '"' {
		s.fail("name %s must be in double quotes, as it holds what ends or cuts a plain one", w)
		return ""
	}
	return u
}

func (s *scanner) oneOf(what string, words ...string) string {
	w := s.word(what)
	if s.err == nil && !slices.Contains(words, w) {
		s.fail("%q is not %s: expected %s", w, what, either(words))
	}
	return w
}

func either(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// options reads keywords, each at most once, until the line ends.
func (s *scanner) options(known map[string]func()) {
	seen := map[string]bool{}
	for len(s.words) > 0 {
		w := s.word("")
		read, ok := known[w]
		switch {
		case !ok && len(known) == 0:
			s.fail("%q follows where the line should end", w)
		case !ok:
			s.fail("%q is unknown here: expected %s", w, either(slices.Sorted(maps.Keys(known))))
		case seen[w]:
			s.fail("%q is there twice", w)
		default:
			seen[w] = true
			read()
		}
	}
}

// list returns the items of a word that has commas between them.
func (s *scanner) list(what string) []string {
	var items []string
	for rest := s.word(what); s.err == nil; {
		item, after, err := cut(rest, ",")
		if err != nil {
			s.fail("%w", err)
		}
		items = append(items, item)
		if len(item) == len(rest) {
			break
		}
		rest = after
	}
	return items
}

func (s *scanner) address() netip.Addr { return s.addressOf(s.word("an IP address")) }

func (s *scanner) addressOf(w string) netip.Addr {
	w = s.unquote(w)
	a, err := netip.ParseAddr(w)
	if err != nil && s.err == nil {
		s.fail("%q is not an IP address such as 10.1.2.3 or fd00::3", w)
	}
	return a
}

func (s *scanner) addresses() []netip.Addr {
	var as []netip.Addr
	for _, item := range s.list("IP addresses") {
		as = append(as, s.addressOf(item))
	}
	return as
}

// names are words that may be anything. An empty one alone stands for none.
func (s *scanner) names(what string) []string {
	var names []string
	for _, item := range s.list(what) {
		if item == "" {
			s.fail("a name is missing among the %s", what)
		}
		names = append(names, s.unquote(item))
	}
	if len(names) == 1 && names[0] == "" {
		return nil
	}
	return names
}

func (s *scanner) prefix() netip.Prefix {
	w := s.name("a prefix")
	p, err := netip.ParsePrefix(w)
	switch {
	case s.err != nil:
	case err != nil:
		s.fail("%q is not a prefix such as 10.1.2.0/24 or fd00:2::/64", w)
	case p != p.Masked():
		s.fail("prefix %s has bits set after its length: expected %s", p, p.Masked())
	}
	return p
}

// backend reads what a member of a set of backends is written as.
func (s *scanner) backend(item string) (a netip.Addr, port uint16, of string) {
	where, node, err := cut(item, "@")
	if err != nil {
		s.fail("%w", err)
	}
	ap, err := netip.ParseAddrPort(s.unquote(where))
	if err != nil && s.err == nil {
		s.fail("%q is not a backend such as 10.1.2.3:8080@node1 or [fd00::3]:8080", item)
	}
	if len(where) < len(item) {
		of = s.unquote(node)
	}
	return ap.Addr(), ap.Port(), of
}

func (s *scanner) clients() Clients {
	var all Clients
	for _, item := range s.list("kinds of clients") {
		one, ok := clientsOf(item)
		if !ok || all&one != 0 {
			s.fail("%q is not a kind of clients, or there twice: expected some of %s", item, FromAll)
		}
		all |= one
	}
	return all
}

// vnis reads one VNI, or the first and the last of a range.
func (s *scanner) vnis() (first, last uint32) {
	w := s.word("a VNI, or a range of them")
	from, to, ok := strings.Cut(w, "-")
	if !ok {
		to = from
	}
	a, err1 := strconv.ParseUint(from, 10, 32)
	b, err2 := strconv.ParseUint(to, 10, 32)
	if s.err == nil && (err1 != nil || err2 != nil) {
		s.fail("%q is neither a VNI nor a range of them such as 0-%d", w, MaxVNI)
	}
	return uint32(a), uint32(b)
}

func (s *scanner) end(item string) TunnelEnd {
	tunnel, end, err := cut(item, "@")
	if err != nil {
		s.fail("%w", err)
	}
	vtep, rest, err := cut(end, "@")
	if err != nil {
		s.fail("%w", err)
	}
	mac, key, hasKey := strings.Cut(rest, "@")
	e := TunnelEnd{Tunnel: s.unquote(tunnel)}
	if e.MAC, err = ParseMAC(mac); err != nil && s.err == nil {
		s.fail("%q is not the end of a tunnel such as vxlan@172.30.0.3@0a:58:ac:1e:00:03: %w", item, err)
	}
	e.VTEP = s.addressOf(vtep)
	if hasKey {
		if e.Key, err = ParsePublicKey(key); err != nil {
			s.fail("%w", err)
		}
	}
	return e
}

func (s *scanner) number(what string, bits int) uint64 {
	w := s.word(what)
	n, err := strconv.ParseUint(w, 10, bits)
	if err != nil && s.err == nil {
		s.fail("%q is not %s: expected a number from 0 to %d", w, what, uint64(1)<<(bits-1)-1+uint64(1)<<(bits-1))
	}
	return n
}

func (s *scanner) port() uint16 { return uint16(s.number("a port", 16)) }

func (s *scanner) class() Class {
	c, err := ParseClass(s.word("a class"))
	if err != nil {
		s.fail("%w", err)
	}
	return c
}

func (s *scanner) tag() Tag { return Tag(s.number("a tag", 32)) }

func (s *scanner) mac() MAC {
	m, err := ParseMAC(s.word("a MAC address"))
	if err != nil {
		s.fail("%w", err)
	}
	return m
}

func (s *scanner) protocol() Protocol {
	p, err := ParseProtocol(s.word("a protocol"))
	if err != nil {
		s.fail("%w", err)
	}
	return p
}

func (s *scanner) duration() time.Duration {
	w := s.word("a duration")
	d, err := time.ParseDuration(w)
	if err != nil {
		s.fail("%q is not a duration such as 3h0m0s", w)
	}
	return d
}
