package answer

import (
	"strings"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/records"
)

// A pod looks for a name with less than five dots in one domain after the other: that of its
// namespace's Services, that of all Services, the cluster's, those of its node, and at last as
// it is. The first question of such a search, where it is a pod's whose search list is known, is
// answered with what the whole search would come to: an alias from the name asked to the one
// that there is. Its others, which most often find nothing, are never asked.
//
// What cannot be told apart is the question for a name as it is, db.shop.svc.cluster.local, from
// the first question of a search for "db". An alias to something outside would be a wrong answer to
// that. So searches for a single label are answered in their own domain alone, where nothing is
// saved anyway, and so are those whose last label is a Service there, and those that look like a
// pod of a StatefulSet or an address below a Service that is gone, "db-0.db" and "10-1-0-2.db".
// What remains are other names below a Service of the pod's own namespace that does not exist.
//
// Which name there is does not depend on the type asked for, so that those for A and for AAAA
// come to the same one. Types that a search has no use for get no alias.

// dots is how many dots a name has that is looked for as it is at first (ndots).
const dots = 5

func isSearched(qtype uint16) bool {
	switch qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeMX, dns.TypeTXT, dns.TypeSRV, dns.TypeSVCB, dns.TypeHTTPS:
		return true
	}
	return false
}

// search goes on with the search of which a name that is missing is the first question, if it
// is one. It returns what it found inside, or what others are to be asked for.
func (a *answering) search(name string) (f found, inside bool, outside *Outside) {
	namespace := a.zone.client(a.from.Address.Unmap())
	if namespace == "" || !isSearched(a.qtype()) {
		return found{}, false, nil
	}
	suffix := "." + labelService + a.settings.suffix
	rest, ok := cut(lowered(name), "."+namespace+suffix)
	if !ok || !a.isSearch(rest, namespace) {
		return found{}, false, nil
	}
	asked := name[:len(rest)]
	domains := []string{suffix, a.settings.suffix}
	// The whole name of something in the cluster is none of a domain of the node.
	if _, own := a.settings.cut(rest + "."); !own {
		for _, d := range a.settings.Searches {
			domains = append(domains, "."+d+".")
		}
	}
	var names []string
	for _, d := range append(domains, ".") {
		name := asked + d
		if _, ok := dns.IsDomainName(name); !ok {
			continue // it is too long, so nobody asks for it
		}
		found, inside := a.find(name)
		switch {
		case !inside:
			names = append(names, name)
		case !found.missing && len(names) > 0:
			return found, false, nil // what comes before it is to be asked first, and by the pod
		case !found.missing:
			a.aliases = append(a.aliases, cname(a.query.Question[0].Name, name))
			return found, true, nil
		}
	}
	if len(names) == 0 {
		return found{}, false, nil
	}
	return found{}, false, &Outside{answering: a, names: names, searched: true}
}

// isSearch reports whether what a pod of a namespace looks for there, which is missing, is to be
// looked for elsewhere.
func (a *answering) isSearch(rest, namespace string) bool {
	labels := dns.SplitDomainName(rest)
	if len(labels) > dots {
		return false
	}
	for len(labels) > 0 && labels[0][0] == '_' {
		labels = labels[1:] // a port's name, and its protocol
	}
	n := len(labels)
	if n < 2 || n == 2 && isNumbered(labels[0]) {
		return false
	}
	return a.zone.service(records.Key{Namespace: namespace, Name: labels[n-1]}) == nil
}

// isNumbered reports whether a label ends in a dash and a number.
func isNumbered(label string) bool {
	front := strings.TrimRight(label, "0123456789")
	return front != label && strings.HasSuffix(front, "-")
}
