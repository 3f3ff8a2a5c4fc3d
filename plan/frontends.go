package plan

// frontend checks an entry of Services.
func (v *validator) frontend(k ServiceKey, svc Service) {
	s := about(v, k, svc)
	s.name("the network", k.Network)
	unicast := s.unicast("address", k.Address)
	switch {
	case k.Protocol == AnyProtocol && k.Port != 0:
		s.add("it has port %d, but a frontend of any protocol is all of its address", k.Port)
	case k.Protocol == AnyProtocol && svc.Set != "":
		s.add("it is all of its address, of which no backend is")
	case k.Protocol == AnyProtocol && (k.Address.IsLoopback() || v.plan.Owns(k.Network, k.Address)):
		s.add("it is all of an address that is the node's own")
	case k.Protocol != AnyProtocol && !k.Protocol.HasPorts():
		s.add("protocol %s has no ports", k.Protocol)
	case k.Protocol.HasPorts() && k.Port == 0:
		s.add("it has no port")
	}
	may := FromAll
	if everything := k; k.From != Anywhere {
		everything.From = Anywhere
		if _, ok := v.plan.Services.Get(everything); ok {
			s.add("there is one for what comes from anywhere beside it")
		}
	}
	switch k.From {
	case Anywhere:
		for _, side := range []Scope{Inside, Outside} {
			other := k
			other.From = side
			if _, ok := v.plan.Services.Get(other); ok {
				s.add("there is one for what comes from %s beside it", side)
			}
		}
	case Inside:
		may = FromEndpoints
	case Outside: // other nodes' endpoints are there, too
	default:
		s.add("side %q is neither %s nor %s", k.From, Inside, Outside)
	}
	if extra := svc.Masquerade &^ may; extra&^FromAll != 0 {
		s.add("masquerade %#x has kinds of clients that there are not", uint8(svc.Masquerade))
	} else if extra != 0 {
		s.add("no %s come from %s", extra, k.From)
	}
	if unicast && k.Address.IsLoopback() && k.From != Inside {
		s.add("%s is reached from %s alone", k.Address, Inside)
	}
	if svc.Otherwise != Refuse && svc.Otherwise != Silence {
		s.add("refusal %q is none of those there are", svc.Otherwise)
	}
	if svc.Here {
		v.here(s, k, svc)
	}
	switch {
	case svc.Affinity < 0:
		s.add("affinity %s is negative", svc.Affinity)
	case svc.Affinity > 0 && svc.Set == "" && !svc.Here:
		s.add("affinity %s, but there are no backends", svc.Affinity)
	}
}

// backend checks an entry of Backends.
func (v *validator) backend(k BackendKey, b Backend) {
	s := about(v, k, b)
	s.name("the network", k.Network)
	s.name("the set", k.Set)
	if s.unicast("address", k.Address) && (k.Address.IsLoopback() || k.Address.IsLinkLocalUnicast()) {
		s.add("address %s means another machine on each", k.Address)
	}
	if k.Port == 0 {
		s.add("it has no port")
	}
	if b.Weight > MaxWeight {
		s.add("weight %d is above %d", b.Weight, MaxWeight)
	}
}

// source checks an entry of Sources.
func (v *validator) source(k SourceKey, src Source) {
	s := about(v, k, src)
	s.name("the network", k.Network)
	s.name("what has the sources", k.Name)
	s.prefix("prefix", k.Prefix)
}

// services checks the three tables whole.
func (v *validator) services() {
	for k, s := range v.plan.Services.All() {
		v.frontend(k, s)
	}
	for k, b := range v.plan.Backends.All() {
		v.backend(k, b)
	}
	for k, s := range v.plan.Sources.All() {
		v.source(k, s)
	}
}

// servicesAfter checks what differs in them.
func (v *validator) servicesAfter(changes Diff) {
	for _, c := range changes.Services {
		if c.New != nil {
			v.frontend(c.Key, *c.New)
		}
	}
	for _, c := range changes.Backends {
		if c.New != nil {
			v.backend(c.Key, *c.New)
		}
	}
	for _, c := range changes.Sources {
		if c.New != nil {
			v.source(c.Key, *c.New)
		}
	}
}
