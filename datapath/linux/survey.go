package linux

import (
	"context"
	"maps"
	"net/netip"

	"github.com/weftnet/weft/datapath/linux/survey"
)

// Obstacles says what of others' own is in the way; see survey.Subject.
func (d *DataPlane) Obstacles() (found []string, err error) {
	s, ok := d.subject()
	if !ok {
		return nil, nil
	}
	err = d.in(func() (err error) { found, err = s.Obstacles(); return err })
	return found, err
}

// Others tells when others change what is their own; see survey.Changes.
func (d *DataPlane) Others(ctx context.Context, following, f func()) error {
	var c *survey.Changes
	if err := d.in(func() (err error) { c, err = survey.Listen(d.stamps); return err }); err != nil {
		return err
	}
	defer c.Close()
	d.setOthers(c)
	defer d.setOthers(nil)
	following()
	return c.Follow(ctx, f)
}

// setOthers says what unheard has the kernel not tell.
func (d *DataPlane) setOthers(c *survey.Changes) {
	d.state.Lock()
	defer d.state.Unlock()
	d.others = c
}

// subject is what the survey looks at; false before there is a plan.
func (d *DataPlane) subject() (s survey.Subject, ok bool) {
	d.state.Lock()
	defer d.state.Unlock()
	if d.compiler == nil {
		return s, false
	}
	// The node may change while this is used.
	n := *d.compiler.node
	n.Links, n.Tunnels = maps.Clone(n.Links), maps.Clone(n.Tunnels)
	s = survey.Subject{Plan: d.compiler.plan, Node: &n, Peers: map[string]map[netip.Addr]bool{}}
	for name, t := range d.compiler.sourcesOf().tunnels {
		s.Peers[name] = t.peers
	}
	return s, true
}
