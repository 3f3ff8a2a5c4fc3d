package server

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/records"
)

// maxServers is how many servers are asked for names of one domain; forward takes no more.
const maxServers = 15

// maxSearches is how many domains a kubelet lets a pod look in at most.
const maxSearches = 32

// ways say who is asked for names outside.
type ways struct {
	// rest are asked for all names but those of stubs.
	rest  []netip.AddrPort
	stubs []records.Stub
	// stale is for how many seconds answers may be given whose time is over.
	stale uint32
	// named are the servers that settings name, of domain "" for all other names, whether or not they
	// are asked.
	named []records.Stub
}

func (w *ways) equal(o *ways) bool {
	return slices.Equal(w.rest, o.rest) && w.stale == o.stale && sameStubs(w.stubs, o.stubs) && sameStubs(w.named, o.named)
}

func sameStubs(some, others []records.Stub) bool {
	return slices.EqualFunc(some, others, func(a, b records.Stub) bool { return a.Domain == b.Domain && slices.Equal(a.Servers, b.Servers) })
}

// servers returns who is asked, each once for each domain.
func (w *ways) servers() (all []server) {
	w.each(func(domain string, servers []netip.AddrPort) {
		for _, at := range servers {
			all = append(all, server{at, domain})
		}
	})
	return all
}

// choose returns who is to be asked: the settings' servers, or else those that a file of the
// node names, nil where it could not be read. Those are left out that are this server itself, and those that loops says bring
// back to it what they are asked; problems say so.
func choose(s *records.Settings, file string, node []netip.AddrPort, own []netip.AddrPort, loops func(server) bool) (w ways, problems []string) {
	usable := func(domain, of string, all []netip.AddrPort) (usable []netip.AddrPort) {
		for _, a := range all {
			at := netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
			if at.Addr().IsUnspecified() {
				// Who sends to no address sends to itself.
				local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
				if at.Addr().Is6() {
					local = netip.IPv6Loopback()
				}
				at = netip.AddrPortFrom(local, at.Port())
			}
			switch {
			case at.Addr().Zone() != "":
				problems = append(problems, fmt.Sprintf("%s of %s is not asked: it is an address of one link alone", at, of))
			case slices.Contains(own, at):
				problems = append(problems, fmt.Sprintf("%s of %s is not asked: it is this name server itself", at, of))
			case loops(server{at, domain}):
				problems = append(problems, fmt.Sprintf("%s of %s is not asked: what it is asked comes back to this name server; let it ask another", at, of))
			case len(usable) == maxServers:
				problems = append(problems, fmt.Sprintf("%s of %s is not asked: %d are enough", at, of, maxServers))
			case !slices.Contains(usable, at):
				usable = append(usable, at)
			}
		}
		return usable
	}
	if s == nil {
		s = &records.Settings{}
	}
	w.stale = s.StaleFor
	w.named = append(w.named, records.Stub{Servers: s.Upstreams})
	w.named = append(w.named, s.Stubs...)
	if len(s.Upstreams) > 0 {
		w.rest = usable("", "the upstreams", s.Upstreams)
	} else {
		w.rest = usable("", file, node)
	}
	// A node that names nobody has nobody ask outside, as one without a way out.
	if len(w.rest) == 0 && (len(s.Upstreams) > 0 || node == nil || len(node) > 0) {
		problems = append(problems, "nobody is there to be asked for names outside of the cluster")
	}
	for _, stub := range s.Stubs {
		servers := usable(stub.Domain, "domain "+stub.Domain, stub.Servers)
		if len(servers) == 0 {
			problems = append(problems, fmt.Sprintf("nobody is there to be asked for names of domain %s", stub.Domain))
		}
		w.stubs = append(w.stubs, records.Stub{Domain: stub.Domain, Servers: servers})
	}
	// Of two that fit, the longer one counts.
	slices.SortStableFunc(w.stubs, func(a, b records.Stub) int { return len(b.Domain) - len(a.Domain) })
	return w, problems
}

// each calls f with the domains that are asked for, "" for all other names, and who is asked.
func (w *ways) each(f func(domain string, servers []netip.AddrPort)) {
	f("", w.rest)
	for _, s := range w.stubs {
		f(s.Domain, s.Servers)
	}
}

// unheard says for which names nobody answers of those who are asked for them, as all are silent.
func (w *ways) unheard(all standings) (problems []string) {
	w.each(func(domain string, servers []netip.AddrPort) {
		answers := func(at netip.AddrPort) bool { return !all.of(server{at, domain}).isSilent() }
		if len(servers) == 0 || slices.ContainsFunc(servers, answers) {
			return
		}
		problems = append(problems, fmt.Sprintf("nobody answers for names %s: what is asked of %s stays without an answer; see whether the node has a way there, or name others", namesOf(domain), and(servers)))
	})
	return problems
}

// unhelped says for which names nobody helps of those who are asked for them, though not all are silent:
// probes, and all that pods asked meanwhile, they cannot or will not answer. One zone that is broken
// somewhere is not enough, as probes are about others.
func (w *ways) unhelped(all standings, failing map[string]bool, now time.Time) (problems []string) {
	w.each(func(domain string, servers []netip.AddrPort) {
		refuses := func(at netip.AddrPort) bool { return all.of(server{at, domain}).refuses(now) }
		may := func(at netip.AddrPort) bool { return !refuses(at) && !all.of(server{at, domain}).isSilent() }
		if !failing[domain] || !slices.ContainsFunc(servers, refuses) || slices.ContainsFunc(servers, may) {
			return
		}
		problems = append(problems, fmt.Sprintf("nobody helps with names %s: all that is asked of %s is answered with a failure, as SERVFAIL or REFUSED, or with whom else to ask; see whether that is a name server for others' names which works and serves this node, or name others", namesOf(domain), and(servers)))
	})
	return problems
}

// passedOver says for which names a server is asked first and others help in its place: probes, and
// all that pods asked meanwhile, it cannot or will not answer.
func (w *ways) passedOver(all standings, now time.Time) (problems []string) {
	w.each(func(domain string, servers []netip.AddrPort) {
		var these []netip.AddrPort
		for _, at := range servers {
			if one := all.of(server{at, domain}); one.passed && one.refuses(now) && !one.isSilent() {
				these = append(these, at)
			}
		}
		if len(these) == 0 || len(these) == len(servers) {
			return
		}
		problems = append(problems, fmt.Sprintf("others help with names %s in the place of %s: all that is asked there is answered with a failure, as SERVFAIL or REFUSED, or with whom else to ask; see whether that is a name server for others' names which works and serves this node, or name it no more", namesOf(domain), and(these)))
	})
	return problems
}

// namesOf says which names are those of a domain, of "" those that no other is for.
func namesOf(domain string) string {
	if domain == "" {
		return "outside of the cluster"
	}
	return "of domain " + domain
}

func and(servers []netip.AddrPort) string {
	var names []string
	for _, at := range servers {
		names = append(names, at.String())
	}
	return strings.Join(names, " and ")
}

// resolvFile is what a node's resolv.conf says, as it is written again and again.
type resolvFile struct {
	data []byte
	// servers are nil until it was read; searches are the domains in which names are looked for.
	servers  []netip.AddrPort
	searches []string
	// gone says that it names none of the servers any more, which it did before.
	gone bool
}

// take takes note of what is in the file, and reports whether that is something else. One that
// names nobody any more is perhaps being written, or the node has no network. One that never
// named anybody means it.
func (r *resolvFile) take(data []byte) (changed bool) {
	if r.servers != nil && bytes.Equal(r.data, data) {
		return false
	}
	r.data = data
	servers, searches := readResolv(data)
	r.searches = searches
	if r.gone = len(servers) == 0 && len(r.servers) > 0; !r.gone {
		r.servers = servers
	}
	return true
}

// readResolv returns the servers that a resolv.conf names, in its order and never nil, and the
// domains in which names are looked for, in lower case and without the dot at their ends; see
// resolv.conf(5).
func readResolv(file []byte) (servers []netip.AddrPort, searches []string) {
	servers = []netip.AddrPort{}
	lines := bufio.NewScanner(bytes.NewReader(file))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(words[1]); err == nil && len(servers) <= maxServers {
				servers = append(servers, netip.AddrPortFrom(a.Unmap(), 53))
			}
		case "search", "domain": // the last of them counts
			searches = nil
			for _, domain := range words[1:] {
				domain = strings.ToLower(strings.TrimSuffix(domain, "."))
				if _, ok := dns.IsDomainName(domain); ok && domain != "" && len(searches) < maxSearches {
					searches = append(searches, domain)
				}
			}
		}
	}
	return servers, searches
}
