package stories

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// Plumbing is what a node holds for its pods, as seen in different places.
// After all has settled, they agree.
type Plumbing struct {
	// Pods are the addresses of the pods that run on the node, by
	// "namespace/name", as the API server says.
	Pods map[string][]netip.Addr
	// Journal is what the agent's journal holds.
	Journal []ipam.Attachment
	// Plan is the agent's.
	Plan *plan.Plan
	// Links are the names of the node's interfaces, and Routes the prefixes of
	// all its routes.
	Links  []string
	Routes []netip.Prefix
}

// Faults lists what does not agree.
func (p Plumbing) Faults() []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	owner := make(map[string]string) // of interfaces
	journal := make(map[string][]netip.Addr)
	for _, a := range p.Journal {
		pod := a.Namespace + "/" + a.Pod
		if other, twice := journal[pod]; twice {
			fault("journal: %s has %v and %v", pod, other, a.Addresses)
		}
		if a.Phase != ipam.Ready {
			fault("journal: the attachment %s of %s is %s", a.Key, pod, a.Phase)
		}
		journal[pod] = a.Addresses
		owner[a.HostInterface] = pod
	}
	faults = append(faults, unequal("journal", p.Pods, journal)...)

	planned := make(map[string][]netip.Addr)
	for key, e := range p.Plan.Endpoints.All() {
		planned[e.Name] = e.Addresses
		if owner[key.Interface] != e.Name {
			fault("plan: %s has the interface %s, which the journal gives to %q", e.Name, key.Interface, owner[key.Interface])
		}
	}
	faults = append(faults, unequal("plan", p.Pods, planned)...)

	for _, link := range p.Links {
		if podlink.IsHostName(link) && owner[link] == "" {
			fault("interface %s belongs to no pod", link)
		}
	}
	for name := range owner {
		if !slices.Contains(p.Links, name) {
			fault("the interface %s of %s is not there", name, owner[name])
		}
	}

	held := make(map[netip.Addr]bool)
	for pod, addresses := range p.Pods {
		for _, a := range addresses {
			held[a] = true
			if !slices.Contains(p.Routes, netip.PrefixFrom(a, a.BitLen())) {
				fault("there is no route to %s of %s", a, pod)
			}
		}
	}
	for _, a := range p.Plan.Local.PoolAddresses() {
		held[a] = true // the node's own
	}
	for _, r := range p.Routes {
		if r.IsSingleIP() && !held[r.Addr()] && slices.ContainsFunc(p.Plan.Local.Pools, func(pool plan.Pool) bool { return pool.Prefix.Contains(r.Addr()) }) {
			fault("there is a route to %s, which no pod has", r)
		}
	}
	slices.Sort(faults)
	return faults
}

// unequal lists how what somebody says of the pods' addresses differs from
// what they are.
func unequal(who string, pods, said map[string][]netip.Addr) []string {
	var faults []string
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		if !slices.Equal(pods[pod], said[pod]) {
			faults = append(faults, fmt.Sprintf("%s: pod %s has %v, but here %v", who, pod, pods[pod], said[pod]))
		}
	}
	for _, pod := range slices.Sorted(maps.Keys(said)) {
		if _, there := pods[pod]; !there {
			faults = append(faults, fmt.Sprintf("%s: there is no pod %s, but it has %v here", who, pod, said[pod]))
		}
	}
	return faults
}

// ParseJournal reads the lines of an agent's journal.
func ParseJournal(text string) ([]ipam.Attachment, error) {
	attachments := make(map[ipam.Key]ipam.Attachment)
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		var r struct {
			Op         string           `json:"op"`
			Attachment *ipam.Attachment `json:"attachment"`
			Key        *ipam.Key        `json:"key"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("line %q of the journal: %w", lines.Text(), err)
		}
		switch {
		case r.Attachment != nil:
			attachments[r.Attachment.Key] = *r.Attachment
		case r.Key != nil && r.Op == "ready":
			a := attachments[*r.Key]
			a.Phase = ipam.Ready
			attachments[*r.Key] = a
		case r.Key != nil:
			delete(attachments, *r.Key)
		}
	}
	return slices.SortedFunc(maps.Values(attachments), func(a, b ipam.Attachment) int { return a.Key.Compare(b.Key) }), lines.Err()
}

// ParseRoutes reads the prefixes out of what ip route show table all prints.
func ParseRoutes(text string) []netip.Prefix {
	var prefixes []netip.Prefix
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "local" || words[0] == "broadcast" || words[0] == "anycast" || words[0] == "multicast" {
			continue
		}
		if p, err := netip.ParsePrefix(words[0]); err == nil {
			prefixes = append(prefixes, p)
		} else if a, err := netip.ParseAddr(words[0]); err == nil {
			prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return prefixes
}
