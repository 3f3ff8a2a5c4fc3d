package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

// A running cluster changes its plug-in in stages. All nodes compile the plug-ins of
// the mix, ClusterConfigStatus.Plugins, and each gives new pods addresses of the one
// that PluginOf names; the others of the mix keep reachable what is there. Agents
// report how far they are, and package plugin/change says what follows from that.

// ForcePluginAnnotation names, on the ClusterConfig, the plug-in that the cluster is to
// change to whatever speaks against it. It counts where it is spec.plugin: then nothing
// refuses the change, and nodes that are not ready are waited for but a moment, and only where
// their agents run. Behind the name and a space may come anything, which tells one such wish
// from the next: it counts for one change, see ClusterConfigStatus.SpentForce.
const ForcePluginAnnotation = "weft.network/force-plugin"

// ForcedPlugin returns the plug-in that a configuration forces, empty where it is none.
func ForcedPlugin(config *ClusterConfig) string {
	wish := config.Annotations[ForcePluginAnnotation]
	if wish == config.Status.SpentForce {
		return ""
	}
	name, _, _ := strings.Cut(wish, " ")
	return name
}

// AskedPlugin returns the plug-in that a configuration asks for, and for which nodes, all if
// that is empty. An empty spec.plugin asks for nothing else than what nodes use: the plug-in
// of the status, or, where some nodes use another before the others, that one for these. So
// who writes a configuration and leaves the plug-in out does not change it, whatever
// spec.pluginNodes says, which means nothing then. DefaultPlugin is for a cluster that uses
// none yet: of one whose status was lost, package plugin/change says what it uses.
func AskedPlugin(config *ClusterConfig) (plugin string, nodes []string) {
	spec, s := config.Spec, config.Status
	switch {
	case spec.Plugin != "":
		return spec.Plugin, spec.PluginNodes
	case len(s.PluginNodes) > 0 && s.PreparedPlugin != "" && s.PreparedPlugin != s.Plugin:
		return s.PreparedPlugin, slices.Clone(s.PluginNodes)
	}
	return cmp.Or(s.Plugin, DefaultPlugin), nil
}

// Wish identifies what a configuration asks for of plug-ins: which one, and by digests on
// which nodes, and by which annotation that is forced. Two that ask for the same have the
// same.
func Wish(config *ClusterConfig) string {
	wish, nodes := AskedPlugin(config)
	if len(nodes) > 0 {
		wish += " on " + digest(nodes...)
	}
	if force := config.Annotations[ForcePluginAnnotation]; force != "" {
		wish += " forced " + digest(force)
	}
	return wish
}

func digest(words ...string) string {
	h := sha256.New()
	for _, word := range words {
		fmt.Fprintf(h, "%q ", word)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// PluginChanged is the condition of the ClusterConfig that says whether all nodes do
// the plug-in that was asked for, and none besides.
const PluginChanged = "PluginChanged"

// The reasons of PluginChanged.
const (
	// PluginSettled: it is so.
	PluginSettled = "Settled"
	// PluginPreparing: nodes load the plug-in beside the one they use.
	PluginPreparing = "Preparing"
	// PluginSwitching: nodes begin to give pods addresses of the plug-in.
	PluginSwitching = "Switching"
	// PluginRetiring: pods live on what a plug-in covers that no node uses any more, or
	// policies on what it enforces.
	PluginRetiring = "Retiring"
	// PluginRefused: the change would cut something off, or leave policies without
	// effect, and was not begun.
	PluginRefused = "Refused"
	// PluginWaiting: something must be done or told before the change goes on, as a
	// plug-in has no configuration, or the change is for some nodes for now, and these
	// are done; or nobody knows what speaks against it.
	PluginWaiting = "Waiting"
	// PluginClashing: machines have one address by several plug-ins that are loaded. The
	// change goes on meanwhile, as it may be what ends it.
	PluginClashing = "Clashing"
)

// PluginOf returns the name of the plug-in of which a node gives new pods addresses,
// by a configuration with or without its defaults. What all nodes use the status says,
// once it is known that nothing speaks against that.
func PluginOf(config *ClusterConfig, node string) string { return PluginsOf(config)(node) }

// PluginsOf is PluginOf for whoever asks of many nodes: what it costs to ask of one does not
// grow with how many spec.pluginNodes names.
func PluginsOf(config *ClusterConfig) func(node string) string {
	wanted, nodes := AskedPlugin(config)
	used := cmp.Or(config.Status.Plugin, wanted)
	first := make(map[string]bool) // says of those in status.pluginNodes whether they are asked for
	if config.Status.PreparedPlugin == wanted {
		for _, name := range config.Status.PluginNodes {
			first[name] = len(nodes) == 0
		}
		for _, name := range nodes {
			if _, told := first[name]; told {
				first[name] = true
			}
		}
	}
	return func(node string) string {
		if first[node] {
			return wanted
		}
		return used
	}
}

// PluginMix returns the names of the plug-ins that every node compiles, in order. All
// that PluginOf returns is among them.
func PluginMix(config *ClusterConfig) []string {
	if len(config.Status.Plugins) > 0 {
		return slices.Clone(config.Status.Plugins)
	}
	return []string{cmp.Or(config.Status.Plugin, config.Spec.Plugin, DefaultPlugin)}
}

// MadeKinds are the kinds of which a plug-in's work for the cluster makes an object for each
// Node, of the Node's name, and deletes it when that is gone, as long as the plug-in is
// loaded.
var MadeKinds = []*registry.Kind{HostSubnet}

// MadeForNode reports whether an object of one of MadeKinds was made for a Node, and not by
// a user for a machine of another kind.
func MadeForNode(o registry.Object) bool {
	return o.GetAnnotations()[networkv1.NodeUIDAnnotation] != ""
}

// PluginsAnnotation holds, on a Node, what its data plane does of which plug-ins, as a
// PluginReport in JSON.
const PluginsAnnotation = "weft.network/plugins"

// PluginReport is what a node's data plane does of which plug-ins.
type PluginReport struct {
	// Revision is ClusterConfigStatus.PluginRevision of the configuration that all of
	// the report is about: the agent has acted by that one, and by no later one. Of an
	// earlier one, a report says nothing of what was asked since.
	Revision int64 `json:"revision,omitempty"`
	// Uses is the plug-in whose part of the plan gives pods addresses in the data plane,
	// empty while none does.
	Uses string `json:"uses,omitempty"`
	// Ready are the plug-ins of the mix whose part of the plan is whole in the data
	// plane, a subnet for the node included.
	Ready []string `json:"ready,omitempty"`
	// Needs are the plug-ins besides Uses from whose subnets pods of the node have
	// addresses, those among them that a request in progress has got already. Where Uses
	// is empty, the one that the node is to use may be among them. So one that is neither
	// in Uses nor in Needs gets no pod any more at this Revision.
	Needs []string `json:"needs,omitempty"`
}

// MaxChangedNodes is how many nodes the status of a ClusterConfig names that use another plug-in
// than the others. It is more than half of the largest cluster has.
const MaxChangedNodes = 10000

// KnowsNoStages reports whether a Node has had an agent, and none that knows that plug-ins
// are changed in stages, as those of earlier versions: it does what spec.plugin says at
// once. All others say something of plug-ins with the first word that they say at all.
func KnowsNoStages(node *corev1.Node) bool {
	_, says := node.Annotations[PluginsAnnotation]
	return !says && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == NodeInSync })
}

// IsReady reports whether a plug-in's part of the plan is whole on the node.
func (r PluginReport) IsReady(plugin string) bool { return slices.Contains(r.Ready, plugin) }

// Keeps reports whether the node gives pods addresses of a plug-in, or has pods with
// some.
func (r PluginReport) Keeps(plugin string) bool {
	return r.Uses == plugin || slices.Contains(r.Needs, plugin)
}

// Status is by what a node goes that says r, where nobody hears the ClusterConfig's status,
// as one that was lost: the node uses what it did, or else what its pods need, beside all
// that it has loaded. It has no Plugin where the node says nothing of that.
func (r PluginReport) Status() ClusterConfigStatus {
	used := r.Uses
	if used == "" && len(r.Needs) > 0 {
		used = slices.Min(r.Needs)
	}
	if used == "" {
		return ClusterConfigStatus{}
	}
	return ClusterConfigStatus{Plugin: used, Plugins: inOrder(slices.Concat([]string{used}, r.Ready, r.Needs)), PluginRevision: r.Revision}
}

// Text is the annotation's value. It is the same for the same plug-ins in any order.
func (r PluginReport) Text() string {
	r.Ready, r.Needs = inOrder(r.Ready), inOrder(r.Needs)
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and a number alone
	}
	return string(text)
}

// inOrder returns names in order, each once.
func inOrder(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// What an agent may say of plug-ins.
const (
	// MaxPlugins is how many plug-ins a report names in one list, and more than there are.
	MaxPlugins = 16
	// MaxPluginRevision is more changes than there can be.
	MaxPluginRevision = 1 << 53
	// maxPluginReport is more bytes than such a report has.
	maxPluginReport = 4096
)

// pluginName is the form of the names of plug-ins.
var pluginName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// NodePlugins returns what a Node's agent said of its plug-ins, nil where it has said
// nothing. It fails where that cannot be read, or where a part of it is nothing that an
// agent of Weft's says; then nothing is known of the node.
func NodePlugins(node *corev1.Node) (*PluginReport, error) {
	text := node.Annotations[PluginsAnnotation]
	if text == "" {
		return nil, nil
	}
	var r PluginReport
	err := fmt.Errorf("it has %d bytes, more than %d", len(text), maxPluginReport)
	if len(text) <= maxPluginReport {
		if err = json.Unmarshal([]byte(text), &r); err == nil {
			err = r.check()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s of Node %s cannot be read: %s", PluginsAnnotation, node.Name, printable.Brief(err.Error()))
	}
	return &r, nil
}

// check says what of it no agent says.
func (r PluginReport) check() error {
	if r.Revision < 0 || r.Revision > MaxPluginRevision {
		return fmt.Errorf("revision is %d, not a number from 0 to %d", r.Revision, int64(MaxPluginRevision))
	}
	if r.Uses != "" && !pluginName.MatchString(r.Uses) {
		return fmt.Errorf("uses: %q is no name of a plug-in", shorten(r.Uses))
	}
	for _, list := range []struct {
		name    string
		plugins []string
	}{{"ready", r.Ready}, {"needs", r.Needs}} {
		if n := len(list.plugins); n > MaxPlugins {
			return fmt.Errorf("%s has %d plug-ins, more than %d", list.name, n, MaxPlugins)
		}
		for i, name := range list.plugins {
			if !pluginName.MatchString(name) {
				return fmt.Errorf("%s[%d]: %q is no name of a plug-in", list.name, i, shorten(name))
			}
		}
	}
	return nil
}
