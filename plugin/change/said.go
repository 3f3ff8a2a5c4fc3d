package change

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
)

// compared adds to what is said whether machines have one address by several plug-ins
// that are loaded. That nobody knows keeps none of these from leaving.
func (n *next) compared(reason, message string) (string, string) {
	if len(n.status.Plugins) < 2 {
		if reason == api.PluginSettled {
			message += n.left()
		}
		return reason, message
	}
	o, err := n.Against(Question{Beside: slices.Clone(n.status.Plugins)})
	switch {
	case err != nil:
		message += "; whether addresses are given twice cannot be read: " + printable.Brief(err.Error())
	case len(o.Clashes) > 0:
		message = fmt.Sprintf("addresses are given twice: %s; %s", n.few(o.Clashes), message)
		if reason != api.PluginRefused {
			reason = api.PluginClashing
		}
	}
	return reason, message
}

// losing adds to what is said of a forced change what ends with the plug-ins that leave: a
// force does not have them stay for that.
func (n *next) losing(reason, message string) (string, string) {
	leaving := without(inForce(n.status), n.wanted)
	if !n.forced || n.status.Plugin != n.wanted || len(leaving) == 0 {
		return reason, message
	}
	o, err := n.Against(Question{Before: append(leaving, n.wanted), After: []string{n.wanted}})
	switch names := strings.Join(leaving, ", "); {
	case err != nil:
		message += fmt.Sprintf("; what ends with %s cannot be read: %s", names, printable.Brief(err.Error()))
	case len(o.Refusals) > 0:
		message += fmt.Sprintf("; as the change is forced, this comes true when %s %s: %s", names, verb(len(leaving), "leaves", "leave"), n.few(o.Refusals))
	}
	return reason, message
}

// verb returns the form of a verb for so many.
func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// left says which objects of Nodes that are gone nobody deletes.
func (n *next) left() (message string) {
	o, err := n.Against(Question{Only: n.status.Plugin})
	if err != nil {
		return "; whether others have left something behind cannot be read: " + printable.Brief(err.Error())
	}
	for _, k := range api.MadeKinds {
		gone := slices.DeleteFunc(slices.Clone(o.Made[k]), func(name string) bool {
			_, there := n.reports[name]
			return there
		})
		if len(gone) > 0 {
			message += fmt.Sprintf("; left behind of Nodes that are gone: %d %s (%s), which no plug-in that is loaded deletes: do that (weft delete %s NAME...)",
				len(gone), plural(k, len(gone)), printable.Few(gone, 0), k.Singular)
		}
	}
	return message
}

// say sets the condition.
func (n *next) say(reason, message string) {
	c := metav1.Condition{Type: api.PluginChanged, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: n.Config.Generation, LastTransitionTime: n.Now}
	if reason == api.PluginSettled {
		c.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&n.status.Conditions, c)
}

// text names them, where behind is what is to be said of those who say that they do
// not.
func (l lagging) text(behind string) string {
	var parts []string
	for _, p := range []struct {
		names []string
		what  string
	}{{l.behind, behind}, {l.late, "no word of the last step yet"}, {l.silent, "nothing reported yet"},
		{l.unreadable, "what the agent reports cannot be read"}, {l.unconfirmed, "not confirmed yet"}} {
		if len(p.names) > 0 {
			parts = append(parts, printable.Few(p.names, 0)+" ("+p.what+")")
		}
	}
	return strings.Join(parts, ", ")
}

// bounded says for how long nodes that are not ready are waited for.
func (n *next) bounded() string {
	if !n.forced {
		return ""
	}
	return fmt.Sprintf("; as the change is forced, it waits for them %v at most, and not for those whose agents do not run", ForcePatience)
}

// describe says at which stage the cluster is, and what it waits for.
func (n *next) describe() (reason, message string) {
	s, nodes := n.status, n.Config.Spec.PluginNodes
	if len(n.objections.Refusals) > 0 && !n.forced {
		some := ""
		if len(s.PluginNodes) > 0 && s.PreparedPlugin == n.wanted {
			some = fmt.Sprintf(", and %s with %s", printable.Few(s.PluginNodes, 0), n.wanted)
		}
		return api.PluginRefused, fmt.Sprintf("the cluster stays with %s%s, as a change to %s is refused: %s; put that right, ask for %s again (weft plugin change %s), or force the change (weft plugin change %s --force)",
			s.Plugin, some, n.wanted, n.few(n.objections.Refusals), s.Plugin, n.undo(), n.wanted)
	}
	if s.PreparedPlugin != n.wanted {
		reason, message = api.PluginPreparing, fmt.Sprintf("nodes load %s beside %s", n.wanted, n.others())
		if n.back() {
			message = fmt.Sprintf("the change to %s is being taken back: %s", s.Plugin, message)
		}
		if len(n.objections.Lacks) > 0 {
			reason, message = api.PluginWaiting, fmt.Sprintf("nodes cannot get ready for %s: %s", n.wanted, n.few(n.objections.Lacks))
		}
		if l := n.unready(); len(l.all()) > 0 {
			message += fmt.Sprintf("; %d of %d %s not ready: %s", len(l.all()), len(n.Nodes), verb(len(l.all()), "is", "are"), l.text("not loaded yet")) + n.bounded()
		}
		return reason, message
	}
	among := n.present
	if s.Plugin != n.wanted {
		if _, f := n.first(); len(f) > 0 {
			reason, message = api.PluginPreparing, fmt.Sprintf("%s is used on %s, and to follow once all nodes are ready: %s",
				n.wanted, cmp.Or(printable.Few(s.PluginNodes, 0), "no node"), printable.Few(f, 0))
			if l := n.unready(); len(l.all()) > 0 {
				message += fmt.Sprintf("; %d of %d %s not ready: %s", len(l.all()), len(n.Nodes), verb(len(l.all()), "is", "are"), l.text("not loaded yet")) + n.bounded()
			}
			return reason, message
		}
		named := setOf(nodes)
		among = func(node string) bool { return named[node] && n.present(node) }
	}
	switched := n.lag(among, func(r *api.PluginReport) bool { return r.Uses == n.wanted })
	switch {
	case len(s.Plugins) == 1:
		return api.PluginSettled, n.wanted + " is the only plug-in"
	case len(switched.all()) > 0 && n.back():
		return api.PluginSwitching, fmt.Sprintf("the change to %s is being taken back: nodes use %s again%s", n.others(), n.wanted, switching(switched))
	case len(switched.all()) > 0:
		return api.PluginSwitching, fmt.Sprintf("nodes change to %s%s", n.wanted, switching(switched))
	case s.Plugin != n.wanted:
		var these []string
		for _, node := range n.Nodes {
			if among(node.Name) {
				these = append(these, node.Name)
			}
		}
		use := fmt.Sprintf("%d of %d nodes %s %s", len(these), len(n.Nodes), verb(len(these), "uses", "use"), n.wanted)
		names, follow := cmp.Or(printable.Few(these, 0), "none"), fmt.Sprintf("weft plugin change %s has all follow, and weft plugin change %s has all come back", n.wanted, s.Plugin)
		if n.written.Plugin == "" {
			return api.PluginWaiting, fmt.Sprintf("%s (%s), and the others %s, which stays so while spec.plugin is empty: %s", use, names, s.Plugin, follow)
		}
		return api.PluginWaiting, fmt.Sprintf("%s, as spec.pluginNodes says (%s), and the others %s: %s", use, names, s.Plugin, follow)
	}
	message = "all nodes use " + n.wanted
	if n.back() {
		message = fmt.Sprintf("the change to %s is being taken back: all nodes use %s again", n.others(), n.wanted)
	}
	if l := n.lag(n.isAway, func(r *api.PluginReport) bool { return r.Uses == n.wanted }); len(l.all()) > 0 {
		message += fmt.Sprintf(", but for those whose agents do not run (%s)", printable.Few(slices.Sorted(slices.Values(l.all())), 0))
	}
	return api.PluginRetiring, message + "; " + n.retiring()
}

// undo is what weft plugin change is to be told so that the cluster stays with what nodes use.
func (n *next) undo() string {
	if n.back() {
		return n.status.Plugin
	}
	return "--abort"
}

// switching says which nodes do not use a plug-in yet. Those that use it by their last word
// are told apart, as only their word of the present revision is missing.
func switching(l lagging) (text string) {
	waiting := l.unconfirmed
	l.unconfirmed = nil
	if n := len(l.all()); n > 0 {
		text = fmt.Sprintf("; %d %s not use it yet: %s", n, verb(n, "does", "do"), l.text("still uses another"))
	}
	if n := len(waiting); n > 0 {
		text += fmt.Sprintf("; %d %s it, and %s not confirmed that since the last step: %s", n, verb(n, "uses", "use"), verb(n, "has", "have"), printable.Few(waiting, 0))
	}
	return text
}

// few joins the first of some sentences.
func (n *next) few(sentences []string) string {
	text := strings.Join(sentences[:min(len(sentences), printable.MaxNamed)], "; ")
	if more := len(sentences) - printable.MaxNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return printable.Brief(text)
}

// others names the plug-ins of the mix besides the one that is asked for.
func (n *next) others() string {
	return strings.Join(without(n.status.Plugins, n.wanted), ", ")
}

// Unmet says what of a wish means nothing, where the configuration is as users wrote it, and
// nodes are the names of all: nodes that spec.pluginNodes names and there are not, or without
// a plug-in, or for one that all use; and a plug-in that is to be forced.
func Unmet(config *api.ClusterConfig, nodes map[string]bool, unknown func(plugin string) error) (out []string) {
	wanted, _ := api.AskedPlugin(config)
	spec := config.Spec
	absent := slices.DeleteFunc(slices.Clone(spec.PluginNodes), func(name string) bool { return nodes[name] })
	switch {
	case len(spec.PluginNodes) == 0:
	case spec.Plugin == "":
		out = append(out, fmt.Sprintf("spec.pluginNodes means nothing (%s), as spec.plugin is empty: name in that the plug-in that these nodes are to use (weft plugin change NAME --node NODE,...), or empty spec.pluginNodes, too", printable.Few(spec.PluginNodes, 0)))
	default:
		if len(absent) > 0 {
			out = append(out, "spec.pluginNodes names "+printable.Few(absent, 0)+", of which there is no Node (see: weft get nodes)")
		}
		if config.Status.Plugin == wanted {
			out = append(out, fmt.Sprintf("spec.pluginNodes means nothing, as %s is what all nodes use that are not told otherwise: empty it (weft plugin change %s)", wanted, wanted))
		}
	}
	switch name := api.ForcedPlugin(config); {
	case name == "" || name == wanted:
	case unknown(name) != nil:
		out = append(out, fmt.Sprintf("annotation %s forces nothing, as there is no plug-in %q: name %s in it, or remove it", api.ForcePluginAnnotation, printable.Brief(name), wanted))
	case len(api.PluginMix(config)) > 1 || config.Status.Plugin != "" && config.Status.Plugin != wanted:
		asked := "is " + wanted
		if spec.Plugin == "" {
			asked = "is empty, which asks for " + wanted
		}
		out = append(out, fmt.Sprintf("annotation %s forces nothing, as it names %s and spec.plugin %s", api.ForcePluginAnnotation, name, asked))
	}
	return out
}

// unmet says the same behind what is said of the change.
func (n *next) unmet(reason, message string) (string, string) {
	for _, text := range Unmet(n.asWritten(), nodeNames(n.Nodes), n.Unknown) {
		message += "; " + text
	}
	return reason, message
}

// retiring says what keeps plug-ins in the mix that nobody asks for.
func (n *next) retiring() string {
	var parts []string
	for _, name := range n.status.Plugins {
		if name == n.wanted {
			continue
		}
		if why := n.kept[name]; why != "" {
			parts = append(parts, fmt.Sprintf("%s stays, as %s, or force the change (weft plugin change %s --force)", name, why, n.wanted))
			continue
		}
		l := n.lag(func(node string) bool { return n.mayKeep(n.status, node, name) }, func(r *api.PluginReport) bool { return !r.Keeps(name) })
		if len(l.all()) == 0 {
			parts = append(parts, name+" leaves")
			continue
		}
		parts = append(parts, fmt.Sprintf("%s stays for %d: %s", name, len(l.all()), l.text("pods have its addresses, and keep them until they are made anew")))
	}
	return strings.Join(parts, "; ")
}
