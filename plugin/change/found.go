package change

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// Config is a cluster's configuration with its defaults, where o is the ClusterConfig as the
// registry has it, nil where there is none. Where its status says nothing of plug-ins it has
// those that Found finds, so that all who ask what nodes use have one answer.
func Config(o registry.Object, nodes iter.Seq[*corev1.Node], unknown func(plugin string) error) *api.ClusterConfig {
	c := api.Effective(o)
	if c.Status.Plugin != "" {
		return c
	}
	var asked api.ClusterConfigSpec
	if written, ok := o.(*api.ClusterConfig); ok && written != nil {
		asked = written.Spec
	}
	found := Found(asked, nodes, unknown)
	if found.Plugin == "" {
		return c
	}
	s := &c.Status
	s.Plugin, s.Plugins, s.LoadingPlugins = found.Plugin, found.Plugins, found.LoadingPlugins
	s.PreparedPlugin, s.PluginNodes = found.PreparedPlugin, found.PluginNodes
	c.Spec = asked // of which the status says what it asks for
	return api.Effective(c)
}

// Found returns what a cluster uses whose status says nothing of plug-ins, as one that is
// new, or was lost, by what its nodes say and what is asked for. It has no Plugin where no
// node names any that is known.
//
// Plugins are all that any node has loaded, and Plugin is what most nodes use. What a node uses
// without having been told so by a status, as one that came since, does not count where several
// were told. One that says that it was does not outvote the others. What one node alone speaks
// of does not count either, where several speak of something else, or another of what is asked
// for: no node decides for all.
//
//   - Where a plug-in is asked for, a node that says nothing, as one whose agent is still to
//     come, counts for that one, so that the first to say something does not decide for all.
//     Of two that as many use it is the one that is not asked for: what nodes change to is
//     not ready everywhere.
//   - Where it is asked for on some nodes, the others decide, as it is not asked of them; they
//     count for what they say.
//   - Where none is asked for, who says nothing has no vote.
//
// What other nodes use stays with these, where nobody asks for something else: they are
// PluginNodes, and it is PreparedPlugin. Nodes that say of a revision that they use it were told so
// by a status, so that all were ready for it. Of more than api.MaxChangedNodes the rest, the last
// in the order of their names, come to Plugin, which all load.
//
// Which of what is loaded was but loading nobody knows, so its policies are in force; not of
// what one node alone speaks of and nobody asks for, as a mix is loaded by all.
func Found(asked api.ClusterConfigSpec, nodes iter.Seq[*corev1.Node], unknown func(plugin string) error) (s api.ClusterConfigStatus) {
	wanted := asked.Plugin
	if wanted != "" && unknown(wanted) != nil {
		wanted = ""
	}
	named := setOf(asked.PluginNodes)
	var all []voter
	told, shared := 0, false
	// speakers counts who speaks of each plug-in, and besides who does not speak of what is
	// asked for.
	speakers, besides := make(map[string]int), make(map[string]int)
	for node := range nodes {
		r, err := api.NodePlugins(node)
		if err != nil || r == nil {
			r = &api.PluginReport{}
		}
		v := voter{node: node.Name, uses: r.Status().Plugin, named: named[node.Name]}
		if v.uses != "" && unknown(v.uses) != nil {
			v.uses = ""
		}
		if v.told = v.uses != "" && r.Revision > 0; v.told {
			told++
		}
		all = append(all, v)
		said := setOf(slices.Concat([]string{r.Uses}, r.Needs, r.Ready))
		for name := range said {
			if name != "" && unknown(name) == nil {
				speakers[name]++
				shared = shared || speakers[name] > 1
				if !said[wanted] {
					besides[name]++
				}
			}
		}
	}
	if len(speakers) == 0 {
		return s
	}
	for i, v := range all {
		all[i].uses = v.usesIf((v.told || told < 2) && (speakers[v.uses] > 1 || !shared))
	}
	if others := votes(all, func(v voter) string { return v.usesIf(!v.named) }); wanted != "" && len(named) > 0 && len(others) > 0 {
		s.Plugin = most(others, wanted)
	}
	if s.Plugin == "" {
		s.Plugin = most(votes(all, func(v voter) string { return cmp.Or(v.uses, wanted) }), wanted)
	}
	if s.Plugin == "" {
		s.Plugin = most(speakers, "")
	}
	if speakers[s.Plugin] == 1 && besides[s.Plugin] == 1 && speakers[wanted] > 0 {
		s.Plugin = wanted
	}
	s.Plugins = slices.Sorted(maps.Keys(speakers))
	if i, found := slices.BinarySearch(s.Plugins, s.Plugin); !found {
		s.Plugins = slices.Insert(s.Plugins, i, s.Plugin)
	}
	for _, name := range s.Plugins {
		if speakers[name] == 1 && len(all) > 1 && name != s.Plugin && name != wanted {
			s.LoadingPlugins = append(s.LoadingPlugins, name)
		}
	}
	others := votes(all, func(v voter) string {
		return v.usesIf(v.told && v.uses != s.Plugin && !slices.Contains(s.LoadingPlugins, v.uses) && (asked.Plugin == "" || v.uses == wanted))
	})
	if s.PreparedPlugin = most(others, ""); s.PreparedPlugin == "" {
		s.PreparedPlugin = s.Plugin
		return s
	}
	for _, v := range all {
		if v.told && v.uses == s.PreparedPlugin {
			s.PluginNodes = append(s.PluginNodes, v.node)
		}
	}
	slices.Sort(s.PluginNodes)
	s.PluginNodes = s.PluginNodes[:min(len(s.PluginNodes), api.MaxChangedNodes)]
	return s
}

// voter is a node whose voice counts for what it uses, empty where that is not known.
type voter struct {
	node, uses string
	// told says that a status told it so, and named that something is asked of it that is
	// not asked of all.
	told, named bool
}

// usesIf returns what the node uses, where that counts.
func (v voter) usesIf(counts bool) string {
	if counts {
		return v.uses
	}
	return ""
}

// votes counts voices, but for empty ones.
func votes(all []voter, voice func(voter) string) map[string]int {
	count := make(map[string]int)
	for _, v := range all {
		if name := voice(v); name != "" {
			count[name]++
		}
	}
	return count
}

// most returns what has most votes. Of two that have as many it is the first in order that is
// not wanted. It is what is wanted where nothing has any.
func most(votes map[string]int, wanted string) string {
	best := wanted
	for _, name := range slices.Sorted(maps.Keys(votes)) {
		if votes[name] > votes[best] || votes[name] == votes[best] && best == wanted {
			best = name
		}
	}
	return best
}
