package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// maxAddresses is how many of a pool's first addresses are given out. It
// bounds what the memory of freed addresses costs where a pool is practically
// infinite, as an IPv6 /64 is.
const maxAddresses = 1 << 16

// maxFreed is how many freed addresses are remembered when their pools are no
// longer the node's.
const maxFreed = 4 * maxAddresses

// ErrExhausted is wrapped by the error of Reserve when a family's pools have
// no address left, ErrNoPools when there is no pool at all, ErrExists when the
// attachment is there already.
var (
	ErrExhausted = errors.New("no address left")
	ErrNoPools   = errors.New("the node has no subnet yet")
	ErrExists    = errors.New("the attachment exists already")
)

// state is what the records of a journal add up to. It is pure: it changes
// only by apply, in the same way when a record is new and when it is read back.
type state struct {
	attachments map[Key]Attachment
	inUse       map[plan.Address]Key
	// freed says of each address that was in use and is not, when it was
	// freed: the value of clock at the time.
	freed map[plan.Address]uint64
	clock uint64
	pools []*pool
}

// pool is what picking from a pool needs to be quick. All of it follows from
// the state's other fields.
type pool struct {
	plan.Pool
	size uint32
	// next is the offset below which every address was in use at some time.
	next uint32
	// queue holds the freed addresses, oldest first; an entry counts only if
	// it agrees with state.freed.
	queue []freedAddr
}

type freedAddr struct {
	addr plan.Address
	at   uint64
}

func newState() *state {
	return &state{attachments: map[Key]Attachment{}, inUse: map[plan.Address]Key{}, freed: map[plan.Address]uint64{}}
}

// check says why r cannot be applied; nil when it can.
func (s *state) check(r record) error {
	switch r.Op {
	case opAttach:
		if r.Attachment == nil {
			return errors.New("no attachment is named")
		}
		a := *r.Attachment
		if err := a.validate(); err != nil {
			return err
		}
		if _, ok := s.attachments[a.Key]; ok {
			return fmt.Errorf("%s: %w", a.Key, ErrExists)
		}
		for addr := range a.held() {
			if holder, ok := s.inUse[addr]; ok {
				return fmt.Errorf("the address %s is held by %s already, and %s wants it too", addr, holder, a.Key)
			}
		}
		return nil
	case opReady, opRelease, opIdentify, opResize:
		if r.Key == nil {
			return errors.New("no attachment is named")
		}
		if r.Op == opIdentify && r.Pod == nil {
			return errors.New("no pod is named")
		}
		if _, ok := s.attachments[*r.Key]; !ok {
			return fmt.Errorf("there is no attachment %s", *r.Key)
		}
		return nil
	case opFreed:
		if r.Network == "" {
			return errors.New("no network of the free addresses is named")
		}
		for _, ip := range r.Freed {
			addr := plan.Address{Network: r.Network, IP: ip}
			if holder, ok := s.inUse[addr]; ok || !ip.IsValid() {
				return fmt.Errorf("the address %s cannot be free: %s holds it", addr, holder)
			}
		}
		return nil
	}
	return fmt.Errorf("the operation %q is not known", r.Op)
}

// apply makes the change that r announces, or none if check says it cannot be.
func (s *state) apply(r record) error {
	if err := s.check(r); err != nil {
		return err
	}
	switch r.Op {
	case opAttach:
		a := *r.Attachment
		s.attachments[a.Key] = a
		for addr := range a.held() {
			s.inUse[addr] = a.Key
			delete(s.freed, addr)
		}
	case opReady:
		a := s.attachments[*r.Key]
		a.Phase = Ready
		s.attachments[a.Key] = a
	case opIdentify:
		a := s.attachments[*r.Key]
		a.PodName, a.Unidentified = *r.Pod, false
		s.attachments[a.Key] = a
	case opResize:
		a := s.attachments[*r.Key]
		a.MTU = r.MTU
		s.attachments[a.Key] = a
	case opRelease:
		a := s.attachments[*r.Key]
		delete(s.attachments, a.Key)
		for addr := range a.held() {
			delete(s.inUse, addr)
			s.free(addr)
		}
	case opFreed:
		for _, ip := range r.Freed {
			s.free(plan.Address{Network: r.Network, IP: ip})
		}
	}
	return nil
}

func (s *state) free(addr plan.Address) {
	s.clock++
	s.freed[addr] = s.clock
	for _, p := range s.pools {
		if p.has(addr) {
			p.queue = append(p.queue, freedAddr{addr, s.clock})
		}
	}
}

// has reports whether an address is one of the pool's.
func (p *pool) has(addr plan.Address) bool {
	return p.Network == addr.Network && p.Prefix.Contains(addr.IP)
}

// String names the pool for people.
func (p *pool) String() string {
	if p.Network == plan.DefaultNetwork {
		return p.Prefix.String()
	}
	return p.Prefix.String() + " of network " + p.Network
}

// usePools makes pools those that pick picks from.
func (s *state) usePools(pools []plan.Pool) {
	wanted := slices.Clone(pools)
	for i := range wanted {
		wanted[i].Prefix = wanted[i].Prefix.Masked()
	}
	if slices.EqualFunc(s.pools, wanted, func(have *pool, want plan.Pool) bool { return have.Pool == want }) {
		return
	}
	s.pools = nil
	if len(wanted) == 0 {
		// The node is between two subnets; the next may be the last again.
		return
	}
	for _, p := range wanted {
		s.pools = append(s.pools, &pool{Pool: p, size: poolSize(p.Prefix)})
	}
	for _, addr := range s.freedInOrder() {
		for _, p := range s.pools {
			if p.has(addr) {
				p.queue = append(p.queue, freedAddr{addr, s.freed[addr]})
			}
		}
	}
}

// forget drops the freed addresses outside of the pools when there are very
// many, as on a node that had many subnets.
func (s *state) forget() {
	if len(s.freed) <= maxFreed || len(s.pools) == 0 {
		return
	}
	maps.DeleteFunc(s.freed, func(addr plan.Address, _ uint64) bool {
		return !slices.ContainsFunc(s.pools, func(p *pool) bool { return p.has(addr) })
	})
}

func (s *state) freedInOrder() []plan.Address {
	return slices.SortedFunc(maps.Keys(s.freed), func(a, b plan.Address) int { return cmp.Compare(s.freed[a], s.freed[b]) })
}

// poolsOf returns the pools of a network.
func (s *state) poolsOf(network string) []*pool {
	return slices.DeleteFunc(slices.Clone(s.pools), func(p *pool) bool { return p.Network != network })
}

// pick returns an address and its gateway for each family that a network has
// pools of, in the order in which pools has the families. It changes nothing that
// counts.
func (s *state) pick(network string) (addrs, gateways []netip.Addr, err error) {
	pools := s.poolsOf(network)
	switch {
	case len(pools) == 0 && network == plan.DefaultNetwork:
		return nil, nil, ErrNoPools
	case len(pools) == 0:
		return nil, nil, fmt.Errorf("%w in network %s", ErrNoPools, network)
	}
	var done [2]bool
	for i, first := range pools {
		family := 0
		if first.Prefix.Addr().Is6() {
			family = 1
		}
		if done[family] {
			continue
		}
		done[family] = true
		var full error
		found := false
		for _, p := range pools[i:] {
			if p.Prefix.Addr().BitLen() != first.Prefix.Addr().BitLen() {
				continue
			}
			if addr, ok := s.pickFrom(p); ok {
				addrs, gateways, found = append(addrs, addr), append(gateways, p.Gateway), true
				break
			}
			full = errors.Join(full, fmt.Errorf("%w in the pool %s: %s", ErrExhausted, p, s.usage(p)))
		}
		if !found {
			return nil, nil, full
		}
	}
	return addrs, gateways, nil
}

func (s *state) pickFrom(p *pool) (netip.Addr, bool) {
	for ; p.next < p.size; p.next++ {
		addr := plan.Address{Network: p.Network, IP: p.at(p.next)}
		_, used := s.inUse[addr]
		_, freed := s.freed[addr]
		if !used && !freed && !p.reserved(addr.IP) {
			return addr.IP, true
		}
	}
	for len(p.queue) > 0 {
		head := p.queue[0]
		if s.freed[head.addr] == head.at && !p.reserved(head.addr.IP) {
			return head.addr.IP, true
		}
		p.queue = p.queue[1:]
	}
	return netip.Addr{}, false
}

// usage says for people how full a pool is.
func (s *state) usage(p *pool) string {
	usable, used := 0, 0
	for n := range p.size {
		if !p.reserved(p.at(n)) {
			usable++
		}
	}
	for addr := range s.inUse {
		if p.has(addr) && !p.reserved(addr.IP) {
			used++
		}
	}
	return fmt.Sprintf("%d of its %d addresses are in use", used, usable)
}

func poolSize(prefix netip.Prefix) uint32 {
	host := prefix.Addr().BitLen() - prefix.Bits()
	if host >= 16 {
		return maxAddresses
	}
	return 1 << host
}

// at returns the pool's n-th address. The low bits of a masked prefix are
// zero, and n never reaches beyond them.
func (p *pool) at(n uint32) netip.Addr {
	b := p.Prefix.Addr().AsSlice()
	b[len(b)-2] |= byte(n >> 8)
	b[len(b)-1] |= byte(n)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// reserved reports whether addr must not be given out: the gateway, the
// network (RFC 1122, section 3.2.1.3) or subnet-router anycast address (RFC
// 4291, section 2.6.1), and the broadcast address. Prefixes of one or two
// addresses have none of the last three (RFC 3021, RFC 6164).
func (p *pool) reserved(addr netip.Addr) bool {
	if addr == p.Gateway {
		return true
	}
	host := addr.BitLen() - p.Prefix.Bits()
	if host < 2 {
		return false
	}
	return addr == p.Prefix.Addr() || addr.Is4() && host <= 16 && addr == p.at(p.size-1)
}

// snapshot returns the fewest records that add up to s.
func (s *state) snapshot() []record {
	records := make([]record, 0, len(s.attachments)+1)
	// Of two networks it does not matter whose address was freed first.
	freed := map[string][]netip.Addr{}
	for _, addr := range s.freedInOrder() {
		freed[addr.Network] = append(freed[addr.Network], addr.IP)
	}
	for _, network := range slices.Sorted(maps.Keys(freed)) {
		records = append(records, record{Op: opFreed, Network: network, Freed: freed[network]})
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.attachments), Key.Compare) {
		a := s.attachments[k]
		records = append(records, record{Op: opAttach, Attachment: &a})
	}
	return records
}
