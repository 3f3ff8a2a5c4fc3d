package agent

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// choice is what a configuration has the node run. Where that is to use a plug-in that this
// version does not know, as one that came with a later one, the node goes on to use the one
// that it does: what pods live on must not go for a name.
func (a *agent) choice(config *api.ClusterConfig) plugin.Choice {
	c := choiceOf(config, a.Node)
	if _, err := a.Plugin(c.Used); err == nil {
		return c
	}
	if used := a.status.lastUsed(); used != "" {
		return c.Using(used)
	}
	return c
}

// choiceOf returns what a ClusterConfig has a node run.
func choiceOf(config *api.ClusterConfig, node string) plugin.Choice {
	return plugin.ChoiceOf(api.PluginOf(config, node), config)
}

// lastStatus is what the ClusterConfig's status said last of the cluster's plug-ins. A node
// goes by it while a later status says nothing, as one that was lost: what pods live on
// must not go with it.
type lastStatus struct {
	mu     sync.Mutex
	status api.ClusterConfigStatus
	// used is the plug-in that the node used last, empty where that is not known.
	used string
}

// uses takes note of the plug-in that the node uses.
func (l *lastStatus) uses(plugin string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = plugin
}

// lastUsed returns the plug-in that the node used last.
func (l *lastStatus) lastUsed() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// heard returns the effective configuration of what the registry has, nil for none, with what
// was said last where its status says nothing.
func (l *lastStatus) heard(o registry.Object) *api.ClusterConfig {
	c := api.Effective(o)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.Status.Plugin != "":
		l.status = c.Status
	case l.status.Plugin != "":
		// What an empty spec asks for hangs on the status.
		if written, ok := o.(*api.ClusterConfig); ok && written != nil {
			c.Spec = written.Spec
		} else {
			c.Spec = api.ClusterConfigSpec{}
		}
		c.Status = l.status
		return api.Effective(c)
	}
	return c
}

// reported has what a node says that it does, or said before its agent started, stand for
// a status that nobody has heard.
func (l *lastStatus) reported(r *api.PluginReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r == nil {
		return
	}
	s := r.Status()
	if s.Plugin == "" {
		return
	}
	if r.Uses != "" || l.used == "" {
		l.used = s.Plugin
	}
	if l.status.Plugin == "" {
		l.status = s
	}
}

// mixed are the plug-ins of a choice.
type mixed struct {
	plugin.Choice
	all []plugin.Plugin // the one that is used first
	// parts are plugin.Parts of all.
	parts func(plugin.Input) map[string]*plan.Plan
	// announced are those that are loading and of which others once knew all that they
	// must of the node. Of a pod that comes later they will learn as they always do.
	announced map[string]bool
}

func mixedOf(c plugin.Choice, all []plugin.Plugin) mixed {
	return mixed{c, all, plugin.Parts(all...), make(map[string]bool)}
}

// enforces reports whether policies are in force on the node. Those of a plug-in that is but
// loading are not, though it reads them.
func (m mixed) enforces() bool {
	return slices.ContainsFunc(m.all, func(p plugin.Plugin) bool {
		return (p.Name() == m.Used || !slices.Contains(m.Loading, p.Name())) && slices.Contains(p.Kinds(), api.NetworkPolicy)
	})
}

// report returns what the node does of which plug-ins, where its data plane does a plan
// that was compiled from in, and held are the addresses that pods have had since; and
// which other nodes keep it from being ready, in sentences for people. It is nil where
// the configuration asks for another choice already, of which the next report will be.
// Where that one has more in the mix, it may not begin soon, see awaitNext, and this
// goes on.
func (m mixed) report(in plugin.Input, asked plugin.Choice, made *plan.Plan, held []plan.Address) (r *api.PluginReport, unready []string) {
	if !m.Equal(asked) && len(asked.Beyond(m.Choice)) == 0 {
		return nil, nil
	}
	used := plugin.BaseOf(m.all[0]).Name()
	parts := map[string]*plan.Plan{used: made}
	if slices.ContainsFunc(m.all, func(p plugin.Plugin) bool { return plugin.BaseOf(p).Name() != used }) {
		parts = m.parts(in)
	}
	r = &api.PluginReport{Revision: in.Config.Status.PluginRevision}
	// What nobody asks it to use any more it may begin to use all the same.
	if len(parts[used].Local.Pools) > 0 || !m.Equal(asked) {
		r.Uses = m.Used
	}
	for _, p := range m.all {
		base := plugin.BaseOf(p).Name()
		m.announced[p.Name()] = m.announced[p.Name()] || !slices.Contains(m.Loading, p.Name()) || plugin.Announced(p, in)
		ready := m.announced[p.Name()] && len(parts[base].Local.Pools) > 0
		if ready && len(parts) > 1 {
			if names := plugin.UnknownNodes(parts[base], in); len(names) > 0 {
				ready, unready = false, append(unready, api.UnreadyFor(p.Name())+api.NoWayTo(names))
			}
			ready = ready && isWithin(parts[base], made)
		}
		if ready {
			r.Ready = append(r.Ready, p.Name())
		}
		if (base != used || r.Uses == "") && slices.ContainsFunc(held, func(a plan.Address) bool { return plugin.Outlives(parts, base, used, a) }) {
			r.Needs = append(r.Needs, p.Name())
		}
	}
	return r, unready
}

// isWithin reports whether a plan leads to all other machines that a part of it leads to.
// It may not, as where a tunnel of another plug-in is in the way, or where the data plane
// cannot do it.
func isWithin(part, all *plan.Plan) bool {
	for _, t := range part.Local.Tunnels {
		if _, there := all.Local.Tunnel(t.Name); !there {
			return false
		}
	}
	for k, r := range part.Routes.All() {
		if len(r.Peers) == 0 || r.EndpointsOnly {
			continue
		}
		way, there := all.Routes.Get(k)
		if !there || !slices.Equal(way.Peers, r.Peers) {
			return false
		}
		if hop := func(p *plan.Plan) netip.Addr { return p.Peer(r.Peer()).NextHop(k.Prefix.Addr()) }; r.Way == plan.ToNextHop && hop(all) != hop(part) {
			return false
		}
	}
	return true
}
