package policy

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/plan"
)

// class is what the node's policies can tell of an address: pods' profile and
// addresses' zone, either nil. Its addresses wear its tag.
type class struct {
	of  classKey
	tag plan.Tag
	// peers are those that contain the class, ports the named ports that its
	// pods have as destinations.
	peers []*peer
	ports []NamedPort
	// entries counts the taggings with its tag.
	entries int
}

type classKey struct {
	*profile
	*zone
}

// classes are those that taggings need.
type classes struct {
	all   map[classKey]*class
	byTag map[plan.Tag]*class
	// fresh came, idle lost their last tagging, since the last sweep.
	fresh, idle []*class
}

func (x *classes) get(p *profile, z *zone) *class {
	of := classKey{p, z}
	if c := x.all[of]; c != nil {
		return c
	}
	c := &class{of: of}
	if p != nil {
		c.peers, c.ports = slices.Clone(p.selectors), p.ports
	}
	if z != nil {
		c.peers = append(c.peers, z.peers...)
	}
	for c.tag = c.preferredTag(); x.byTag[c.tag] != nil; c.tag = nextLocalTag(c.tag) {
	}
	x.all[of], x.byTag[c.tag] = c, c
	x.fresh = append(x.fresh, c)
	return c
}

// localTags is how many tags a node has for itself.
const localTags = uint32(plan.MaxTag - plan.FirstLocalTag + 1)

// preferredTag is made from what the class is, so that the same class gets the
// same tag when the agent starts anew, unless another has taken it.
func (c *class) preferredTag() plan.Tag {
	keys := make([]string, len(c.peers))
	for i, p := range c.peers {
		keys[i] = p.key
	}
	slices.Sort(keys)
	h := fnv.New32a()
	h.Write(appendPorts(nil, c.ports))
	h.Write([]byte("\n" + strings.Join(keys, "\n")))
	return plan.FirstLocalTag + plan.Tag(h.Sum32()%localTags)
}

func nextLocalTag(t plan.Tag) plan.Tag {
	return plan.FirstLocalTag + plan.Tag((uint32(t-plan.FirstLocalTag)+1)%localTags)
}

// sweep forgets the classes that no tagging needs, and returns what came and
// went since the last call; what did both is in both.
func (x *classes) sweep() (came, gone []*class) {
	for _, c := range x.idle {
		if c.entries == 0 && x.byTag[c.tag] == c {
			delete(x.byTag, c.tag)
			delete(x.all, c.of)
			gone = append(gone, c)
		}
	}
	came, x.fresh, x.idle = x.fresh, nil, nil
	return came, gone
}

// tagging returns the class that a prefix needs an entry for, nil where what is
// around it says enough, and where that is known from.
func (s *state) tagging(p netip.Prefix) (*class, string) {
	if p.IsSingleIP() {
		if m, origin := s.ownerOf(p.Addr()); m != nil && m.profile != nil {
			return s.classes.get(m.profile, s.prefixes.zoneOf(p)), origin
		}
	}
	at := s.prefixes.places.at[p]
	if at == nil || at.zone == s.prefixes.zoneAround(p) {
		return nil, ""
	}
	return s.classes.get(nil, at.zone), at.origin()
}

// ownerOf returns whose an address is, if it is a pod's that is known.
func (s *state) ownerOf(a netip.Addr) (*member, string) {
	if o, ok := s.owners.local[a]; ok {
		return o.member, "Pod " + o.pod.Name
	}
	if c, ok := s.owners.claims[a]; ok {
		return s.members.groups[c.tag], c.node.Origin
	}
	return nil, ""
}

// retag makes the tagging of a prefix what it must be.
func (s *state) retag(p netip.Prefix) {
	k := plan.TagKey{Network: s.world.Network, Prefix: p}
	c, origin := s.tagging(p)
	old, was := s.tables.Tags.Get(k)
	if c == nil && !was || c != nil && was && old == (plan.Tagging{Tag: c.tag, Origin: origin}) {
		return
	}
	if c != nil {
		c.entries++
		s.tables.Tags = s.tables.Tags.Set(k, plan.Tagging{Tag: c.tag, Origin: origin})
	} else {
		s.tables.Tags = s.tables.Tags.Delete(k)
	}
	if was {
		o := s.classes.byTag[old.Tag]
		if o.entries--; o.entries == 0 {
			s.classes.idle = append(s.classes.idle, o)
		}
	}
}
