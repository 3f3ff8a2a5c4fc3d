package networkpolicy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/policy/kubernetes"
	"github.com/weftnet/weft/registry"
)

// locals are the node's own pods, each the same pointer while it means the same.
type locals struct {
	byInterface map[string]local
	// named is what the identities were read with.
	named map[string]bool
	// list is in the order of interfaces.
	list []*policy.Local
}

type local struct {
	*policy.Local
	// pod and endpoint are what it was made of.
	pod      *corev1.Pod
	endpoint plugin.Endpoint
}

// update reads the endpoints that a node has.
func (l *locals) update(in plugin.Input, named map[string]bool) {
	before := l.byInterface
	l.byInterface = make(map[string]local, len(in.Node.Endpoints))
	list := make([]*policy.Local, 0, len(in.Node.Endpoints))
	sameNames := maps.Equal(l.named, named)
	l.named = named
	var said map[netip.Addr]plan.Tag
	for _, e := range in.Node.Endpoints {
		if _, twice := l.byInterface[e.Interface]; twice {
			continue
		}
		now := local{pod: podOf(in, e), endpoint: e}
		had, known := before[e.Interface]
		if known && sameNames && now.pod != nil && had.pod == now.pod && sameEndpoint(had.endpoint, e) {
			now.Local = had.Local
		} else {
			now.Local = readLocal(e, now.pod, named)
			if now.pod == nil && len(now.Addresses) > 0 {
				if said == nil {
					said = saidOf(own(in))
				}
				now.Identity = leftBehind(in.Objects, e, said)
			}
			if known && had.Identity != nil && now.Identity != nil && sameIdentity(had.Identity, now.Identity) {
				now.Identity = had.Identity
			}
			if known && sameLocal(had.Local, now.Local) {
				now.Local = had.Local
			}
		}
		l.byInterface[e.Interface] = now
		list = append(list, now.Local)
	}
	slices.SortFunc(list, func(a, b *policy.Local) int { return strings.Compare(a.Interface, b.Interface) })
	if !slices.Equal(l.list, list) {
		l.list = list
	}
}

func sameEndpoint(a, b plugin.Endpoint) bool {
	return a.Namespace == b.Namespace && a.Pod == b.Pod && a.UID == b.UID && a.Unidentified == b.Unidentified && a.Network == b.Network && slices.Equal(a.Addresses, b.Addresses)
}

func sameLocal(a, b *policy.Local) bool {
	return a.Name == b.Name && a.Namespace == b.Namespace && a.Identity == b.Identity && a.Unidentified == b.Unidentified && a.Ended == b.Ended &&
		slices.Equal(a.Addresses, b.Addresses)
}

// podOf returns the pod of an endpoint, nil while it is not known.
func podOf(in plugin.Input, e plugin.Endpoint) *corev1.Pod {
	if e.Pod == "" {
		return nil
	}
	p := registry.GetAs[*corev1.Pod](in.Objects, api.Pod, registry.Key{Namespace: e.Namespace, Name: e.Pod})
	if p == nil || p.Spec.NodeName != in.Node.Name || !api.IsPod(p, e.UID) {
		return nil
	}
	return p
}

func readLocal(e plugin.Endpoint, p *corev1.Pod, named map[string]bool) *policy.Local {
	l := &policy.Local{Interface: e.Interface, Name: e.Name(), Namespace: e.Namespace, Unidentified: e.Unidentified}
	// In the network that policies speak of, the addresses of another are somebody
	// else's. The pod itself is under its policies in any.
	if e.Network == plan.DefaultNetwork {
		l.Addresses = e.Addresses
	}
	if p != nil {
		l.Identity = kubernetes.Identity(p, named)
		l.Ended = api.Ended(p)
	}
	return l
}

// leftBehind returns what a pod was whose object is gone, by what the node said of it while
// it knew it; nil where that is not known. Such a pod, as after a deletion by force, may run
// on. No object says then what it is, but it is what it was: it stays under its policies,
// and others, who know it by its tag, deny it what they denied it before. An address may
// have been another pod's before; one of another namespace says nothing of this one.
func leftBehind(objects registry.Objects, e plugin.Endpoint, said map[netip.Addr]plan.Tag) *policy.Identity {
	t, known := said[e.Addresses[0]]
	for _, a := range e.Addresses {
		if other, same := said[a]; !same || other != t {
			return nil
		}
	}
	o := registry.GetAs[*api.Tag](objects, api.TagKind, registry.Key{Name: tagName(t)})
	if !known || o == nil || e.Unidentified {
		return nil
	}
	read := readTag(o, nil)
	if read == nil || read.group == nil || read.group.Namespace != e.Namespace {
		return nil
	}
	return &read.group.Identity
}

// counts reports whether others should know of a pod of the node.
func counts(l *policy.Local) bool { return l.Identity != nil && !l.Ended && len(l.Addresses) > 0 }
