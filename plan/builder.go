package plan

// Builder makes a plan out of another, so that what stays equal stays shared.
// A compiler states every entry it wants with the Put methods; entries of the
// previous plan that it does not state are gone in the plan that Build
// returns. The zero Builder starts from the empty plan.
type Builder struct {
	Local     Local
	networks  draft[NetworkKey, Network]
	peers     draft[PeerKey, Peer]
	endpoints draft[EndpointKey, Endpoint]
	routes    draft[RouteKey, Route]
	tags      draft[TagKey, Tagging]
	classes   draft[ClassKey, Membership]
	within    draft[WithinKey, Within]
	verdicts  draft[VerdictKey, Verdict]
	services  draft[ServiceKey, Service]
	backends  draft[BackendKey, Backend]
	sources   draft[SourceKey, Source]
	egress    draft[EgressKey, Egress]
}

type draft[K TableKey[K], V TableValue[V]] struct {
	table Table[K, V]
	put   map[K]struct{}
	edits []Edit[K, V]
}

// NewBuilder returns a builder that reuses what it can of previous, which may
// be nil.
func NewBuilder(previous *Plan) *Builder {
	b := &Builder{}
	if previous != nil {
		b.networks.table = previous.Networks
		b.peers.table = previous.Peers
		b.endpoints.table = previous.Endpoints
		b.routes.table = previous.Routes
		b.tags.table = previous.Tags
		b.classes.table = previous.Classes
		b.within.table = previous.Within
		b.verdicts.table = previous.Verdicts
		b.services.table = previous.Services
		b.backends.table = previous.Backends
		b.sources.table = previous.Sources
		b.egress.table = previous.Egress
	}
	return b
}

// PutNetwork states a network. It returns false, and keeps the first, when one of
// that key was stated before; so do the other Put methods.
func (b *Builder) PutNetwork(k NetworkKey, v Network) bool { return b.networks.set(k, v) }

// PutPeer states a peer.
func (b *Builder) PutPeer(k PeerKey, v Peer) bool { return b.peers.set(k, v) }

// PutEndpoint states an endpoint.
func (b *Builder) PutEndpoint(k EndpointKey, v Endpoint) bool { return b.endpoints.set(k, v) }

// PutRoute states a route.
func (b *Builder) PutRoute(k RouteKey, v Route) bool {
	k.Prefix = k.Prefix.Masked()
	return b.routes.set(k, v)
}

// PutTag states which tag a prefix wears.
func (b *Builder) PutTag(k TagKey, v Tagging) bool {
	k.Prefix = k.Prefix.Masked()
	return b.tags.set(k, v)
}

// PutClass states of which class a prefix is.
func (b *Builder) PutClass(k ClassKey, v Membership) bool {
	k.Prefix = k.Prefix.Masked()
	return b.classes.set(k, v)
}

// PutWithin states which wider class a class is within.
func (b *Builder) PutWithin(k WithinKey, v Within) bool { return b.within.set(k, v) }

// PutVerdict states a verdict.
func (b *Builder) PutVerdict(k VerdictKey, v Verdict) bool { return b.verdicts.set(k, v) }

// PutService states a frontend.
func (b *Builder) PutService(k ServiceKey, v Service) bool { return b.services.set(k, v) }

// PutBackend states a member of a set of backends.
func (b *Builder) PutBackend(k BackendKey, v Backend) bool { return b.backends.set(k, v) }

// PutSource states a prefix of those who may send to frontends.
func (b *Builder) PutSource(k SourceKey, v Source) bool {
	k.Prefix = k.Prefix.Masked()
	return b.sources.set(k, v)
}

// PutEgress states an egress rule.
func (b *Builder) PutEgress(k EgressKey, v Egress) bool {
	k.Destination = k.Destination.Masked()
	return b.egress.set(k, v)
}

// Build returns the plan of all that was stated. The builder must not be used
// afterwards.
func (b *Builder) Build() *Plan {
	return &Plan{
		Local:     b.Local,
		Networks:  b.networks.done(),
		Peers:     b.peers.done(),
		Endpoints: b.endpoints.done(),
		Routes:    b.routes.done(),
		Tags:      b.tags.done(),
		Classes:   b.classes.done(),
		Within:    b.within.done(),
		Verdicts:  b.verdicts.done(),
		Services:  b.services.done(),
		Backends:  b.backends.done(),
		Sources:   b.sources.done(),
		Egress:    b.egress.done(),
	}
}

func (d *draft[K, V]) set(k K, v V) bool {
	if _, ok := d.put[k]; ok {
		return false
	}
	if d.put == nil {
		d.put = make(map[K]struct{}, d.table.Len())
	}
	d.put[k] = struct{}{}
	if old, there := d.table.Get(k); !there || !old.Equal(v) {
		d.edits = append(d.edits, Edit[K, V]{Key: k, Value: v})
	}
	return true
}

func (d *draft[K, V]) done() Table[K, V] {
	t := d.table.With(d.edits)
	if t.Len() == len(d.put) {
		return t
	}
	var gone []Edit[K, V]
	for k := range d.table.All() {
		if _, ok := d.put[k]; !ok {
			gone = append(gone, Edit[K, V]{Key: k, Gone: true})
		}
	}
	return t.With(gone)
}
