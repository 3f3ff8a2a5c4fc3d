package ipam

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

// model is what a journal must do, said as simply as possible: it remembers
// when each address was freed last, and looks through all of them.
type model struct {
	holder map[plan.Address]Key
	freed  map[plan.Address]int
	clock  int
	// node has the addresses that the node has itself.
	node map[netip.Addr]bool
}

// reserve picks addresses until the node has none of them itself. What it has counts as
// freed just then.
func (m *model) reserve(network string, ps []plan.Pool) ([]netip.Addr, bool) {
	passed := map[netip.Addr]bool{}
	for {
		addrs, ok := m.pick(network, ps)
		i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return m.node[a] })
		if i < 0 || !ok {
			return addrs, ok
		}
		if passed[addrs[i]] {
			return nil, false
		}
		passed[addrs[i]] = true
		m.clock++
		m.freed[plan.Address{Network: network, IP: addrs[i]}] = m.clock
	}
}

func (m *model) pick(network string, ps []plan.Pool) ([]netip.Addr, bool) {
	ps = slices.DeleteFunc(slices.Clone(ps), func(p plan.Pool) bool { return p.Network != network })
	if len(ps) == 0 {
		return nil, false
	}
	var addrs []netip.Addr
	for _, is4 := range []bool{ps[0].Prefix.Addr().Is4(), !ps[0].Prefix.Addr().Is4()} {
		var best netip.Addr
		wanted := false
		for _, p := range ps {
			if p.Prefix.Addr().Is4() != is4 {
				continue
			}
			wanted = true
			for a := p.Prefix.Addr(); p.Prefix.Contains(a); a = a.Next() {
				last := !p.Prefix.Contains(a.Next()) && is4
				at := func(a netip.Addr) plan.Address { return plan.Address{Network: network, IP: a} }
				_, held := m.holder[at(a)]
				if held || a == p.Prefix.Addr() || a == p.Gateway || last {
					continue
				}
				if !best.IsValid() || m.freed[at(a)] < m.freed[at(best)] {
					best = a
				}
			}
			if best.IsValid() {
				break
			}
		}
		if wanted && !best.IsValid() {
			return nil, false
		}
		if wanted {
			addrs = append(addrs, best)
		}
	}
	return addrs, true
}

// TestJournalAgainstModel does what a node's life brings, in any order, with
// restarts and crashes in between, to a journal and to the model.
func TestJournalAgainstModel(t *testing.T) {
	choices := [][]plan.Pool{
		pools("10.1.0.0/29"),
		pools("10.1.0.0/29", "fd00::/125"),
		pools("fd00::/125", "10.1.0.0/30", "10.2.0.0/29"),
		pools("10.1.0.0/28"),
		slices.Concat(poolsIn("red", "10.1.0.0/29"), pools("10.1.0.0/29"), poolsIn("blue", "fd00::/125", "10.1.0.0/30", "10.2.0.0/30")),
		slices.Concat(pools("fd00::/126"), poolsIn("red", "fd00::/125", "10.1.0.0/28")),
		nil,
	}
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		scratch, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(scratch, "journal")
		j, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { j.Close() }()
		m := &model{holder: map[plan.Address]Key{}, freed: map[plan.Address]int{}, node: map[netip.Addr]bool{}}
		phases := map[Key]Phase{}
		ps := choices[0]
		number := rapid.IntRange(0, 12)
		// A pod may have an interface in each network.
		draw := func(t *rapid.T) Request {
			n := number.Draw(t, "pod")
			if network := rapid.SampledFrom([]string{plan.DefaultNetwork, "red", "blue"}).Draw(t, "network"); network != plan.DefaultNetwork {
				return requestIn(network, n)
			}
			return request(n)
		}
		restart := func(t *rapid.T, torn []byte) {
			j.Close()
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(torn); err != nil {
				t.Fatal(err)
			}
			f.Close()
			if j, err = Open(path); err != nil {
				t.Fatal(err)
			}
			if j.Damage() != nil {
				t.Fatal(j.Damage())
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"pools": func(t *rapid.T) { ps = rapid.SampledFrom(choices).Draw(t, "pools") },
			"node": func(t *rapid.T) {
				a := netip.AddrFrom4([4]byte{10, 1, 0, byte(rapid.IntRange(0, 9).Draw(t, "address"))})
				m.node[a] = !m.node[a]
			},
			"reserve": func(t *rapid.T) {
				req := draw(t)
				a, err := j.Reserve(req, always(ps), func(a netip.Addr) bool { return m.node[a] })
				if _, ok := phases[req.Key]; ok {
					if !errors.Is(err, ErrExists) {
						t.Fatalf("reserved twice: %v", err)
					}
					return
				}
				want, ok := m.reserve(req.Network, ps)
				if ok != (err == nil) {
					t.Fatalf("got %v, want %v", err, want)
				}
				if !slices.Equal(want, a.Addresses) {
					t.Fatalf("got %v, want %v", a.Addresses, want)
				}
				for _, ip := range want {
					addr := plan.Address{Network: req.Network, IP: ip}
					m.holder[addr] = req.Key
					delete(m.freed, addr)
				}
				if ok {
					phases[req.Key] = Pending
				}
			},
			"commit": func(t *rapid.T) {
				k := draw(t).Key
				_, ok := phases[k]
				if err := j.Commit(k); (err == nil) != ok {
					t.Fatal(err)
				}
				if ok {
					phases[k] = Ready
				}
			},
			"release": func(t *rapid.T) {
				k := draw(t).Key
				a, _ := j.Get(k)
				if err := j.Release(k); err != nil {
					t.Fatal(err)
				}
				delete(phases, k)
				for addr := range a.held() {
					delete(m.holder, addr)
					m.clock++
					m.freed[addr] = m.clock
				}
			},
			"restart": func(t *rapid.T) { restart(t, nil) },
			"crash in a record": func(t *rapid.T) {
				line := `{"op":"attach","attachment":{"containerID":"lost"}}`
				restart(t, []byte(line[:rapid.IntRange(1, len(line)).Draw(t, "bytes")]))
			},
			"compact": func(t *rapid.T) {
				if err := j.compact(); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				all := j.All()
				if len(all) != len(phases) {
					t.Fatalf("there are %d attachments, want %d", len(all), len(phases))
				}
				held := 0
				for _, a := range all {
					if a.Phase != phases[a.Key] {
						t.Fatalf("%s is %s, want %s", a.Key, a.Phase, phases[a.Key])
					}
					for addr := range a.held() {
						held++
						if m.holder[addr] != a.Key {
							t.Fatalf("%s is held by %s, want %s", addr, a.Key, m.holder[addr])
						}
					}
				}
				if held != len(m.holder) {
					t.Fatalf("%d addresses are held, want %d", held, len(m.holder))
				}
			},
		})
	})
}
