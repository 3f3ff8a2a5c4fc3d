package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/plan"
)

// cell is a node between two of the agent's actions: what the journal's file
// holds, and which interfaces there are.
type cell struct {
	file       []byte
	interfaces map[Key][]plan.Address
	wrong      error
}

// scratch is where journals are opened.
type scratch struct {
	path  string
	pools []plan.Pool
	// networks are those that pods are in, one after the other.
	networks []string
}

// agent starts on a file, does one thing and is killed, and returns the file.
func (s scratch) agent(file []byte, do func(*Journal) error) ([]byte, error) {
	if err := os.WriteFile(s.path, file, 0o600); err != nil {
		return nil, err
	}
	j, err := Open(s.path)
	if err != nil {
		return nil, err
	}
	err = errors.Join(j.Damage(), do(j), j.Close())
	after, readErr := os.ReadFile(s.path)
	return after, errors.Join(err, readErr)
}

// next does what a runtime may ask of the agent for each of some pods, an action
// at a time. The agent is killed after each, or while it writes the journal.
func (s scratch) next(pods int) func(*cell, func(string, *cell)) {
	return func(c *cell, yield func(string, *cell)) {
		r, err := replay(c.file)
		if err != nil {
			panic(err)
		}
		writes := func(what string, do func(*Journal) error) {
			after, err := s.agent(c.file, do)
			if err != nil {
				yield(what, &cell{c.file, c.interfaces, fmt.Errorf("%s: %w", what, err)})
				return
			}
			yield(what, &cell{after, c.interfaces, nil})
			whole := after[:bytes.LastIndexByte(after[:len(after)-1], '\n')+1]
			for _, n := range []int{1, (len(after) - len(whole)) / 2, len(after) - len(whole) - 1} {
				yield(fmt.Sprintf("%s, but only %d bytes of it are written", what, n), &cell{after[:len(whole)+n], c.interfaces, nil})
			}
		}
		for n := range pods {
			req := request(n)
			req.Network = s.networks[n%len(s.networks)]
			a, reserved := r.state.attachments[req.Key]
			_, there := c.interfaces[req.Key]
			if !reserved {
				r.state.usePools(s.pools)
				if _, _, err := r.state.pick(req.Network); err == nil {
					writes(fmt.Sprintf("addresses are reserved for pod %d", n), func(j *Journal) error { _, err := j.Reserve(req, always(s.pools), nil); return err })
				}
				continue
			}
			if !there {
				with := maps.Clone(c.interfaces)
				with[req.Key] = slices.Collect(a.held())
				yield(fmt.Sprintf("the interface of pod %d is made", n), &cell{c.file, with, nil})
				writes(fmt.Sprintf("the addresses of pod %d are released", n), func(j *Journal) error { return j.Release(req.Key) })
				continue
			}
			if a.Phase == Pending {
				writes(fmt.Sprintf("pod %d is ready", n), func(j *Journal) error { return j.Commit(req.Key) })
			}
			without := maps.Clone(c.interfaces)
			delete(without, req.Key)
			yield(fmt.Sprintf("the interface of pod %d goes", n), &cell{c.file, without, nil})
		}
	}
}

func (c *cell) key() []byte {
	r, _ := replay(c.file)
	out := fmt.Appendf(nil, "torn %t freed %v", r.size < int64(len(c.file)), r.state.freedInOrder())
	for _, k := range slices.SortedFunc(maps.Keys(r.state.attachments), Key.Compare) {
		a := r.state.attachments[k]
		out = fmt.Appendf(out, "\n%s %v %s", k, a.Addresses, a.Phase)
	}
	for _, k := range slices.SortedFunc(maps.Keys(c.interfaces), Key.Compare) {
		out = fmt.Appendf(out, "\ninterface %s %v", k, c.interfaces[k])
	}
	return out
}

// check says what is wrong with a node: an address with two interfaces of its
// network, or one with an interface that the journal does not say has it.
func (c *cell) check() error {
	if c.wrong != nil {
		return c.wrong
	}
	r, err := replay(c.file)
	if err != nil || r.line > 0 {
		return fmt.Errorf("the journal is damaged in line %d: %w", r.line, errors.Join(err, r.reason))
	}
	holders := map[plan.Address]Key{}
	for k, addresses := range c.interfaces {
		for _, a := range addresses {
			if other, held := holders[a]; held {
				return fmt.Errorf("%s is with %s and %s", a, k, other)
			}
			holders[a] = k
			if r.state.inUse[a] != k {
				return fmt.Errorf("%s is with %s, but the journal has it for %q", a, k, r.state.inUse[a])
			}
		}
	}
	for a, k := range r.state.inUse {
		if _, there := r.state.attachments[k]; !there {
			return fmt.Errorf("%s is held by %s, which is not there", a, k)
		}
	}
	return nil
}

// TestAllInterleavings visits every state that a node's journal can get into
// whose agent is killed after each action and within each write: no address is
// with two, none is lost, and no end of the agent damages the journal.
func TestAllInterleavings(t *testing.T) {
	for _, sc := range []struct {
		pods     int
		pools    []plan.Pool
		networks []string
		long     bool
	}{
		{pods: 2, pools: append(pools("10.1.0.0/30"), poolsIn("red", "10.1.0.0/30")...), networks: []string{plan.DefaultNetwork, "red"}},
		{pods: 2, pools: pools("10.1.0.0/30")},
		{pods: 2, pools: pools("10.1.0.0/30", "fd00::/126")},
		{pods: 2, pools: pools("10.1.0.0/29"), long: true},
		{pods: 3, pools: pools("10.1.0.0/30", "10.2.0.0/30"), long: true},
	} {
		t.Run(fmt.Sprint(sc.pods, " pods ", sc.pools[0].Prefix, " and ", len(sc.pools)-1, " pools"), func(t *testing.T) {
			if sc.long && !explore.Long() {
				t.Skip("WEFT_EXPLORE is not long")
			}
			if sc.networks == nil {
				sc.networks = []string{plan.DefaultNetwork}
			}
			s := scratch{filepath.Join(t.TempDir(), "journal"), sc.pools, sc.networks}
			file, err := s.agent(nil, func(*Journal) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			r := explore.Model[*cell]{
				Start: &cell{file: file, interfaces: map[Key][]plan.Address{}},
				Next:  s.next(sc.pods),
				Key:   (*cell).key,
				Check: (*cell).check,
			}.Run()
			if !r.Complete {
				t.Fatal(r)
			}
			t.Log(r)
		})
	}
}
