package answer

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/records"
)

// found is what a name stands for.
type found struct {
	// name is the one that was looked for, as it was written, zone the one above it that says
	// so where there is nothing.
	name, zone string
	// missing says that there is neither the name nor one below it.
	missing bool
	// records are those of the type asked for, extra what more helps.
	records, extra []dns.RR
	// alias is another name that it stands for, empty where it is one of its own.
	alias string
}

// The labels below the domain.
const (
	labelService   = "svc"
	labelEndpoints = "endpoints"
	labelPod       = "pod"
	// prefixEndpoints is in front of a Service's name where its endpoints are meant.
	prefixEndpoints = "_endpoints"
)

// version is that of Kubernetes' DNS specification.
const version = "1.1.0"

// nameserver is the name of this server, below the domain.
const nameserver = "ns.dns"

// find returns what a name stands for, or that it is not for us to say.
func (a *answering) find(name string) (f found, inside bool) {
	lower := lowered(name)
	if address, zone, ok := reverse(lower); ok && a.settings.suffix != "" {
		return a.pointers(name, zone, address)
	}
	s := a.settings
	rest, has := s.cut(lower)
	if !has {
		return found{}, false
	}
	f = found{name: name, zone: s.suffix[1:]}
	a.below(&f, dns.SplitDomainName(rest))
	return f, true
}

// below answers for a name by its labels below the domain.
func (a *answering) below(f *found, labels []string) {
	if len(labels) == 0 {
		a.apex(f)
		return
	}
	top := labels[len(labels)-1]
	labels = labels[:len(labels)-1]
	switch {
	case top == labelService || top == labelEndpoints:
		a.services(f, labels, top == labelEndpoints)
	case top == labelPod:
		a.pods(f, labels)
	case top == "dns-version" && len(labels) == 0:
		if a.qtype() == dns.TypeTXT {
			f.records = []dns.RR{&dns.TXT{Hdr: header(f.name, dns.TypeTXT), Txt: []string{version}}}
		}
	case top == "dns" && len(labels) == 0: // only something below it
	case top == "dns" && len(labels) == 1 && labels[0] == "ns":
		f.records = a.addressRecords(f.name, a.settings.Addresses)
	default:
		f.missing = true
	}
}

// qtype is the type that is asked for.
func (a *answering) qtype() uint16 { return a.query.Question[0].Qtype }

// cut returns what is in front of the domain in a name in lower case that is in it, and in no
// domain below it that others answer for.
func (s *settings) cut(lower string) (rest string, ok bool) {
	if s.suffix == "" {
		return "", false
	}
	if rest, ok = cut(lower, s.suffix); !ok {
		return "", false
	}
	for _, suffix := range s.others {
		if _, others := cut(lower, suffix); others {
			return "", false
		}
	}
	return rest, true
}

// cut returns what is in front of a domain, which has a dot at either end, in a name that is
// it or below it.
func cut(name, suffix string) (rest string, ok bool) {
	if name == suffix[1:] {
		return "", true
	}
	rest, ok = strings.CutSuffix(name, suffix)
	// A dot behind an odd number of these is one of a label (RFC 1035, section 5.1).
	if escapes := len(rest) - len(strings.TrimRight(rest, `\`)); escapes%2 == 1 {
		return "", false
	}
	return rest, ok && rest != ""
}

// lowered returns a name in lower case. It is as long as before.
func lowered(name string) string {
	if strings.IndexFunc(name, isUpper) < 0 {
		return name
	}
	bytes := []byte(name)
	for i, b := range bytes {
		if isUpper(rune(b)) {
			bytes[i] += 'a' - 'A'
		}
	}
	return string(bytes)
}

func isUpper(r rune) bool { return r >= 'A' && r <= 'Z' }

// apex answers for the domain itself.
func (a *answering) apex(f *found) {
	switch a.qtype() {
	case dns.TypeSOA:
		f.records = []dns.RR{a.soa(f.name)}
	case dns.TypeNS:
		ns := nameserver + a.settings.suffix
		f.records = []dns.RR{&dns.NS{Hdr: header(f.name, dns.TypeNS), Ns: ns}}
		for _, address := range a.settings.Addresses {
			f.extra = append(f.extra, addressRecord(ns, address))
		}
	}
}

// pods answers for names of pods by their addresses, from labels below them.
func (a *answering) pods(f *found, labels []string) {
	f.missing = true
	switch len(labels) {
	case 0:
		f.missing = false
	case 1:
		if a.settings.Pods == records.AnyPods && a.zone.hasNamespace(labels[0]) {
			f.missing = false
		}
	case 2:
		if a.settings.Pods != records.AnyPods || !a.zone.hasNamespace(labels[1]) {
			return
		}
		// An address that means another machine to each who asks is no pod's.
		if address, ok := undashed(labels[0]); ok && address.IsGlobalUnicast() {
			f.missing, f.records = false, a.addressRecords(f.name, []netip.Addr{address})
		}
	}
}

// services answers for names below those of namespaces, from labels below them; ofEndpoints
// says that a Service's name means its endpoints.
func (a *answering) services(f *found, labels []string, ofEndpoints bool) {
	n := len(labels)
	if n == 0 {
		return
	}
	namespace := labels[n-1]
	if n == 1 {
		if !a.zone.hasNamespace(namespace) {
			f.missing = true
		}
		return
	}
	s := a.zone.service(records.Key{Namespace: namespace, Name: labels[n-2]})
	prefix := labels[:n-2]
	if s == nil {
		f.missing = true
		return
	}
	if !ofEndpoints && len(prefix) > 0 && prefix[len(prefix)-1] == prefixEndpoints {
		prefix, ofEndpoints = prefix[:len(prefix)-1], true
	}
	if s.External != "" {
		if len(prefix) > 0 || ofEndpoints {
			f.missing = true
			return
		}
		f.alias = s.External + "."
		return
	}
	w := wanted{service: s, ofEndpoints: ofEndpoints, target: s.Name + "." + s.Namespace + "." + labelService + a.settings.suffix}
	switch {
	case len(prefix) == 0:
		a.whole(f, w)
	case len(prefix) == 1 && !strings.HasPrefix(prefix[0], "_"):
		a.host(f, w, prefix[0])
	case len(prefix) == 1 && isProtocol(prefix[0]):
		w.protocol = prefix[0][1:]
		f.missing = true
		if w.hasPort(func(p records.Port) bool { return p.Name != "" && p.Protocol == w.protocol }) {
			f.missing = false // only something below it
		}
	case len(prefix) == 2 && isProtocol(prefix[1]) && len(prefix[0]) > 1 && prefix[0][0] == '_':
		w.port, w.protocol = prefix[0][1:], prefix[1][1:]
		a.whole(f, w)
	default:
		f.missing = true
	}
	if f.missing && a.settings.Prefixes && (ofEndpoints || !s.Headless()) && !hasUnderscore(prefix) {
		a.whole(f, wanted{service: s, ofEndpoints: ofEndpoints, target: w.target})
	}
}

func isProtocol(label string) bool {
	return label == "_"+records.TCP || label == "_"+records.UDP || label == "_"+records.SCTP
}

func hasUnderscore(labels []string) bool {
	for _, l := range labels {
		if l[0] == '_' {
			return true
		}
	}
	return false
}

// reverse returns the address that a name in lower case is of, and the zone of all such names
// (RFC 1035, section 3.5; RFC 3596, section 2.5).
func reverse(lower string) (address netip.Addr, zone string, ok bool) {
	const zone4, zone6 = "in-addr.arpa.", "ip6.arpa."
	if rest, is4 := strings.CutSuffix(lower, "."+zone4); is4 {
		var bytes [4]byte
		n := 0
		for label := range strings.SplitSeq(rest, ".") {
			b, err := strconv.ParseUint(label, 10, 8)
			if err != nil || n == len(bytes) || strconv.FormatUint(b, 10) != label {
				return netip.Addr{}, "", false
			}
			bytes[len(bytes)-1-n] = byte(b)
			n++
		}
		return netip.AddrFrom4(bytes), zone4, n == len(bytes)
	}
	rest, is6 := strings.CutSuffix(lower, "."+zone6)
	var bytes [16]byte
	if !is6 || len(rest) != 4*len(bytes)-1 {
		return netip.Addr{}, "", false
	}
	for i := 0; i < len(rest); i += 2 {
		digit := strings.IndexByte("0123456789abcdef", rest[i])
		if digit < 0 || i+1 < len(rest) && rest[i+1] != '.' {
			return netip.Addr{}, "", false
		}
		bytes[len(bytes)-1-i/4] |= byte(digit) << (i / 2 % 2 * 4)
	}
	return netip.AddrFrom16(bytes), zone6, true
}

// pointers answers for an address that a Service or one of its endpoints has. What an address
// that is no Service's is called others know.
func (a *answering) pointers(name, zone string, address netip.Addr) (f found, inside bool) {
	var own, of []string
	seen := make(map[string]bool)
	for _, e := range a.zone.has(address, a.limit) {
		s := e.now.Load()
		target := s.Name + "." + s.Namespace + "." + labelService + a.settings.suffix
		if slices.Contains(s.Addresses, address) {
			own = append(own, target)
		}
		for _, behind := range s.at(address) {
			if len(own) > 0 || len(of) == a.limit {
				break
			}
			if name := hostname(behind) + "." + target; !seen[name] {
				seen[name] = true
				of = append(of, name)
			}
		}
		if len(own) == a.limit {
			break
		}
	}
	if len(own) == 0 {
		own = of
	}
	if len(own) == 0 {
		return found{}, false
	}
	f = found{name: name, zone: zone}
	if a.qtype() == dns.TypePTR {
		for _, target := range own {
			f.records = append(f.records, &dns.PTR{Hdr: header(name, dns.TypePTR), Ptr: target})
		}
	}
	return f, true
}
