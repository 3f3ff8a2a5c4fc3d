package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/datapath/dataplanes"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// lastApplied is the annotation that holds what apply was given last, so that
// the next apply can remove what the file no longer says. It is kubectl's.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// maxFile bounds what is read of a file, in bytes.
const maxFile = 16 << 20

// target is an object that a file names.
type target struct {
	kind *registry.Kind
	key  registry.Key
	// fields are what the file says, as JSON.
	fields map[string]any
}

func newApply(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or change objects as a file says",
		Long: `apply makes objects what the documents of a YAML or JSON file say. Fields that
the file does not have keep their value, unless an earlier apply set them: those
go, and nothing that is beside them. The status of objects that exist is not
touched. All documents are checked before the first is written.`,
		Example: `  weft apply -f network.yaml
  weft get clusterconfig default -o yaml | sed s/openshift-subnet/flannel/ | weft apply -f -`,
		Args: noArgs,
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	files := cmd.Flags().StringArrayP("filename", "f", nil, "`FILE` with the objects, - for the standard input")
	cmd.MarkFlagRequired("filename")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		targets, err := readTargets(cmd, *files, namespace())
		if err != nil {
			return err
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		// Objects that exist are checked with what they have already.
		var refused []error
		for _, t := range targets {
			refused = append(refused, t.check(cmd.Context(), reg))
		}
		if err := problems(refused...); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
		for _, t := range targets {
			done, err := t.apply(cmd.Context(), reg)
			if err != nil {
				return err
			}
			printable.Fprintf(cmd.OutOrStdout(), "%s/%s %s\n", t.kind.Singular, t.key.Name, done)
		}
		for _, w := range slices.Concat(unmetWish(cmd.Context(), reg, targets), coveredNodes(cmd.Context(), reg, targets), unenforced(cmd.Context(), reg, targets)) {
			printable.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", printable.Brief(w))
		}
		return nil
	}
	return cmd
}

// unmetWish says that a ClusterConfig that was applied asks for another plug-in than the
// cluster uses, and what of it means nothing.
func unmetWish(ctx context.Context, reg daemon.Registry, targets []target) []string {
	if !slices.ContainsFunc(targets, func(t target) bool { return t.kind.Plural == api.ClusterConfigKind.Plural }) {
		return nil
	}
	objects := make(registry.Snapshot)
	if err := readInto(ctx, reg, objects, api.ClusterConfigKind, api.Node); err != nil {
		return []string{"whether the cluster has what clusterconfig " + api.DefaultName + " names is not known: " + err.Error()}
	}
	config := configOf(objects)
	warnings := otherPlugin(config)
	if written, ok := objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}).(*api.ClusterConfig); ok {
		config = written // which says what it leaves out
	}
	for _, text := range unmet(config, explain.Cluster{Objects: objects, Plugin: plugins.Finder(reg.Serves)}) {
		warnings = append(warnings, fmt.Sprintf("clusterconfig %s: %s", api.DefaultName, text))
	}
	return warnings
}

// coveredNodes says which addresses of nodes are in the ranges that plug-ins of the cluster give
// subnets from, where the configuration of one was applied: agents and the controller say so
// later, and elsewhere.
func coveredNodes(ctx context.Context, reg daemon.Registry, targets []target) (warnings []string) {
	applies := func(k *registry.Kind) bool {
		return slices.ContainsFunc(targets, func(t target) bool { return t.kind.GroupVersionKind == k.GroupVersionKind })
	}
	var configures []*registry.Kind
	for _, k := range []*registry.Kind{api.ClusterNetwork, flannel.ConfigKind} {
		if applies(k) {
			configures = append(configures, k)
		}
	}
	if len(configures) == 0 {
		return nil
	}
	objects := make(registry.Snapshot)
	if err := readInto(ctx, reg, objects, api.ClusterConfigKind, api.Node); err != nil {
		return []string{"whether nodes' own addresses are in the range is not known: " + err.Error()}
	}
	config, find := configOf(objects), plugins.Finder(reg.Serves)
	var loaded []plugin.Plugin
	for _, name := range append(api.PluginMix(config), config.Spec.Plugin) {
		if p, err := find(name); err == nil {
			loaded = append(loaded, p)
		}
	}
	for _, base := range plugin.BasesOf(loaded) {
		if !slices.ContainsFunc(configures, func(k *registry.Kind) bool { return slices.Contains(base.Kinds(), k) }) {
			continue
		}
		if err := readInto(ctx, reg, objects, base.Kinds()...); err != nil {
			return append(warnings, "whether nodes' own addresses are in the range is not known: "+err.Error())
		}
		warnings = append(warnings, change.Covered(base, config, objects)...)
	}
	return warnings
}

// otherPlugin says that a configuration asks for another plug-in than nodes use, or takes back
// that they change to another, or leaves it at that some have changed: who applies one may have
// meant something else.
func otherPlugin(config *api.ClusterConfig) []string {
	used, asked := usedPlugin(config), config.Spec.Plugin
	others := slices.DeleteFunc(api.PluginMix(config), func(name string) bool { return name == used })
	switch {
	case staysMixed(config):
		return []string{fmt.Sprintf("clusterconfig %s: %s stays with plug-in %s, and the other nodes with %s, as it asks for nothing else: weft plugin change %s has all follow, and weft plugin change %s has all come back",
			config.Name, printable.Few(config.Spec.PluginNodes, 0), asked, used, asked, used)}
	case asked != used:
		on := ""
		if some := config.Spec.PluginNodes; len(some) > 0 {
			on = " on " + printable.Few(some, 0)
		}
		return []string{fmt.Sprintf("clusterconfig %s: it asks for plug-in %s%s, and the cluster uses %s; how far that change is says weft plugin status", config.Name, asked, on, used)}
	case len(others) > 0 && isBack(config):
		return []string{fmt.Sprintf("clusterconfig %s: it asks for plug-in %s, so the change to %s is taken back; how far that is says weft plugin status", config.Name, asked, strings.Join(others, ", "))}
	}
	return nil
}

// staysMixed reports whether a configuration asks for what there is already where some nodes use
// another plug-in than the others. So does one that names no plug-in.
func staysMixed(config *api.ClusterConfig) bool {
	spec, status := config.Spec, config.Status
	return spec.Plugin != usedPlugin(config) && spec.Plugin == status.PreparedPlugin && len(spec.PluginNodes) > 0 && slices.Equal(spec.PluginNodes, status.PluginNodes)
}

// unenforced says which policies nobody enforces after objects were applied or
// deleted: of those that were applied, or of all where a ClusterConfig was.
func unenforced(ctx context.Context, reg daemon.Registry, targets []target) (warnings []string) {
	applied := make(map[*registry.Kind][]string)
	for _, t := range targets {
		i := slices.IndexFunc(kinds(), func(k *registry.Kind) bool { return k.GroupVersionKind == t.kind.GroupVersionKind })
		k := kinds()[i]
		applied[k] = append(applied[k], k.Singular+" "+t.key.String())
	}
	changed := len(applied[api.ClusterConfigKind]) > 0
	if !changed && !slices.ContainsFunc(api.PolicyKinds, func(k *registry.Kind) bool { return len(applied[k]) > 0 }) {
		return nil
	}
	objects := make(registry.Snapshot)
	err := readConfig(ctx, reg, objects)
	var plug plugin.Plugin
	if err == nil {
		plug, err = pluginOf(objects, plugins.Finder(reg.Serves))
	}
	if err != nil {
		return []string{"whether policies are enforced is not known: " + err.Error()}
	}
	if config := configOf(objects); changed && config.Spec.Plugin != plug.Name() && !staysMixed(config) {
		return refusedChange(ctx, reg, objects, config.Spec.Plugin)
	}
	more := 0
	for _, k := range plugins.Unenforced(plug) {
		policies := applied[k]
		if changed {
			if err := readInto(ctx, reg, objects, k); err != nil {
				return []string{"whether there are policies that nobody enforces is not known: " + err.Error()}
			}
			policies = nil
			for _, o := range objects[k] {
				policies = append(policies, k.Singular+" "+registry.KeyOf(o).String())
			}
		}
		for _, p := range policies {
			if len(warnings) == printable.MaxNamed {
				more++
				continue
			}
			warnings = append(warnings, fmt.Sprintf("%s: nobody enforces it under plug-in %s; %s", p, plug.Name(), plugins.Remedy(k)))
		}
	}
	if more > 0 {
		warnings = append(warnings, fmt.Sprintf("nor is any of %d more policies enforced", more))
	}
	return warnings
}

// refusedChange says why the cluster will not change to the plug-in that was asked for.
func refusedChange(ctx context.Context, reg daemon.Registry, objects registry.Snapshot, wanted string) (warnings []string) {
	to, err := plugins.Finder(reg.Serves)(wanted)
	if err != nil {
		return []string{err.Error()}
	}
	against, err := objections(ctx, reg, objects, to)
	if err != nil {
		return []string{fmt.Sprintf("whether the cluster can change to %s is not known: %v", wanted, err)}
	}
	for _, r := range against.Refusals {
		warnings = append(warnings, fmt.Sprintf("the cluster will not change to %s: %s", wanted, r))
	}
	warnings = append(warnings, against.Effects...)
	for _, l := range against.Lacks {
		warnings = append(warnings, fmt.Sprintf("nodes cannot get ready for %s yet: %s", wanted, l))
	}
	return warnings
}

// readTargets reads files and refuses them all if something in one is wrong.
func readTargets(cmd *cobra.Command, files []string, namespace string) ([]target, error) {
	var targets []target
	var errs []error
	for _, name := range files {
		var in io.Reader = cmd.InOrStdin()
		if name != "-" {
			f, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			in = f
		}
		text, err := io.ReadAll(io.LimitReader(in, maxFile+1)) // Decode refuses what is longer
		if err != nil {
			return nil, err
		}
		decoded, err := api.Decode(text, wholeKinds())
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		for _, d := range decoded {
			targets = append(targets, newTarget(d, namespace))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(targets) == 0 {
		return nil, errors.New("the files hold no objects")
	}
	seen := make(map[string]bool)
	for _, t := range targets {
		name := t.kind.Singular + " " + t.key.String()
		if seen[name] {
			return nil, fmt.Errorf("%s is there twice: leave one out", name)
		}
		seen[name] = true
	}
	return targets, nil
}

// newTarget makes a target of what a file says.
func newTarget(d api.Decoded, namespace string) target {
	k, o := d.Kind, d.Object
	if k.Namespaced && o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	t := target{kind: k, key: registry.KeyOf(o), fields: maps.Clone(d.Fields)}
	metadata, _ := t.fields["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = make(map[string]any)
	}
	// What the registry gives an object is not for files to say.
	for _, f := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "selfLink"} {
		delete(metadata, f)
	}
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		annotations = maps.Clone(annotations)
		delete(annotations, lastApplied)
		metadata["annotations"] = annotations
	}
	if k.Namespaced {
		metadata["namespace"] = t.key.Namespace
	}
	t.fields["metadata"] = metadata
	return t
}

// problems joins errors, with a line for each problem if there are several. Those
// that an object has are one error, which names the object once.
func problems(errs ...error) error {
	var lines []string
	for _, err := range errs {
		var several utilerrors.Aggregate
		switch {
		case err == nil:
		case errors.As(err, &several):
			object := strings.TrimSuffix(err.Error(), several.Error())
			for _, e := range several.Errors() {
				lines = append(lines, object+e.Error())
			}
		default:
			lines = append(lines, err.Error())
		}
	}
	switch len(lines) {
	case 0:
		return nil
	case 1:
		return errors.Join(errs...)
	default:
		return fmt.Errorf("%d problems:\n  %s", len(lines), strings.Join(lines, "\n  "))
	}
}

// check says what would keep apply from writing the object.
func (t target) check(ctx context.Context, reg registry.Registry) error {
	have, err := reg.Get(ctx, t.kind, t.key)
	if errors.Is(err, registry.ErrNotFound) {
		have = nil
	} else if err != nil {
		return err
	}
	o, err := t.merge(have)
	if err == nil {
		_, _, err = t.kind.Admit(o)
	}
	if err == nil {
		err = checkParts(o)
	}
	return err
}

// checkParts says whether there are the parts that a ClusterConfig or a Node names,
// which the kind's own rules cannot know.
func checkParts(o registry.Object) error {
	if node, ok := o.(*corev1.Node); ok {
		return checkDataPlane(api.AskedDataPlane(node), fmt.Sprintf("node %s: annotation %s", node.Name, api.DataPlaneAnnotation))
	}
	config, ok := o.(*api.ClusterConfig)
	if !ok {
		return nil
	}
	spec := api.Effective(config).Spec
	if _, err := plugins.Get(spec.Plugin); err != nil {
		return fmt.Errorf("clusterconfig %s: spec.plugin: %w", config.Name, err)
	}
	return checkDataPlane(spec.DataPlane, fmt.Sprintf("clusterconfig %s: spec.dataPlane", config.Name))
}

// checkDataPlane says that there is no data plane of a name, where one is given.
func checkDataPlane(name, where string) error {
	if name == "" {
		return nil
	}
	if err := dataplanes.Check(name); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

// apply makes the object what the file says, and says what it did.
func (t target) apply(ctx context.Context, reg registry.Registry) (string, error) {
	for {
		o, err := t.merge(nil)
		if err != nil {
			return "", err
		}
		_, err = reg.Create(ctx, t.kind, o)
		if err == nil {
			return "created", nil
		}
		if !errors.Is(err, registry.ErrExists) {
			return "", err
		}
		var before string
		after, err := registry.Modify(ctx, reg, t.kind, t.key, func(have registry.Object) error {
			before = have.GetResourceVersion()
			o, err := t.merge(have)
			if err != nil || sameJSON(have, o) {
				return err
			}
			reflect.ValueOf(have).Elem().Set(reflect.ValueOf(o).Elem())
			return nil
		})
		switch {
		case errors.Is(err, registry.ErrNotFound):
			continue // deleted meanwhile
		case err != nil:
			return "", err
		case after.GetResourceVersion() == before:
			return "unchanged", nil
		default:
			return "configured", nil
		}
	}
}

// merge returns the object that the registry should have, where it has have,
// or nil.
func (t target) merge(have registry.Object) (registry.Object, error) {
	want := maps.Clone(t.fields)
	result, last := map[string]any{}, map[string]any{}
	if have != nil {
		delete(want, "status")
		if err := convert(have, &result); err != nil {
			return nil, err
		}
		if text := have.GetAnnotations()[lastApplied]; text != "" {
			// What cannot be read says nothing.
			_ = json.Unmarshal([]byte(text), &last)
		}
	}
	if t.kind.Layout != nil {
		// Such a kind keeps nothing but its value, which the file says whole.
		last = maps.Clone(result)
	}
	delete(last, "status")
	mergeFields(result, last, want)
	if have != nil && t.kind.GroupVersionKind == api.ClusterNetwork.GroupVersionKind {
		followRanges(result, want)
	}
	o := t.kind.New()
	if err := convert(result, o); err != nil {
		return nil, fmt.Errorf("%s %s: %w", t.kind.Singular, t.key, err)
	}
	if svc, ok := have.(*corev1.Service); ok {
		keepNodePorts(svc, o.(*corev1.Service))
		dropOfType(svc, o.(*corev1.Service))
	}
	if have != nil {
		o.SetResourceVersion(have.GetResourceVersion())
		o.SetUID(have.GetUID())
		o.SetCreationTimestamp(have.GetCreationTimestamp())
	}
	if t.kind.Layout != nil {
		return o, nil
	}
	said := maps.Clone(t.fields)
	delete(said, "status")
	text, err := json.Marshal(said)
	if err != nil {
		return nil, err
	}
	annotations := maps.Clone(o.GetAnnotations())
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[lastApplied] = string(text)
	if validation.ValidateAnnotationsSize(annotations) != nil {
		return nil, fmt.Errorf("%s %s: what the file says of it is %d bytes long, and apply keeps it in the annotation %s, where an object has room for %d bytes with all its annotations: split it into several objects",
			t.kind.Singular, t.key, len(text), lastApplied, validation.TotalAnnotationSizeLimitB)
	}
	o.SetAnnotations(annotations)
	return o, nil
}

// keepNodePorts has a Service keep the ports of nodes that it was given, where the file leaves them out:
// a list is one value, and would take them away to have others given. Kubernetes' API does so, too.
func keepNodePorts(have, want *corev1.Service) {
	given := func(s *corev1.Service) bool {
		return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
	}
	if !given(have) || !given(want) {
		return
	}
	type numbered struct {
		port     int32
		protocol corev1.Protocol
	}
	of := func(number int32, p corev1.ServicePort) numbered {
		return numbered{number, cmp.Or(p.Protocol, corev1.ProtocolTCP)}
	}
	was, taken := make(map[numbered]int32), make(map[numbered]bool)
	for _, p := range have.Spec.Ports {
		was[of(p.Port, p)] = p.NodePort
	}
	for _, p := range want.Spec.Ports {
		taken[of(p.NodePort, p)] = true
	}
	for i, p := range want.Spec.Ports {
		if n := was[of(p.Port, p)]; p.NodePort == 0 && !taken[of(n, p)] {
			want.Spec.Ports[i].NodePort = n
		}
	}
}

// dropOfType takes away from a Service what it was given, or had, by the type that it had, and that it
// cannot have by that which it gets. What the file says anew stays, and is refused. Kubernetes' API does so, too.
func dropOfType(have, want *corev1.Service) {
	inCluster := func(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }
	balanced := func(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeLoadBalancer }
	outside := func(s *corev1.Service) bool {
		return balanced(s) || s.Spec.Type == corev1.ServiceTypeNodePort || inCluster(s) && len(s.Spec.ExternalIPs) > 0
	}
	for _, f := range []struct {
		has func(*corev1.Service) bool
		at  func(*corev1.ServiceSpec) any
	}{
		{inCluster, func(s *corev1.ServiceSpec) any { return &s.ClusterIP }},
		{inCluster, func(s *corev1.ServiceSpec) any { return &s.ClusterIPs }},
		{inCluster, func(s *corev1.ServiceSpec) any { return &s.IPFamilies }},
		{inCluster, func(s *corev1.ServiceSpec) any { return &s.IPFamilyPolicy }},
		{outside, func(s *corev1.ServiceSpec) any { return &s.ExternalTrafficPolicy }},
		{service.IsChecked, func(s *corev1.ServiceSpec) any { return &s.HealthCheckNodePort }},
		{balanced, func(s *corev1.ServiceSpec) any { return &s.AllocateLoadBalancerNodePorts }},
		{balanced, func(s *corev1.ServiceSpec) any { return &s.LoadBalancerClass }},
	} {
		now := reflect.ValueOf(f.at(&want.Spec)).Elem()
		if f.has(have) && !f.has(want) && reflect.DeepEqual(now.Interface(), reflect.ValueOf(f.at(&have.Spec)).Elem().Interface()) {
			now.SetZero()
		}
	}
}

// followRanges has the fields of a ClusterNetwork that were there before it could have several
// ranges say of the first what the file says, where the file says the ranges alone: a controller
// fills them in, also in an object that users made, and they are no other wish.
func followRanges(have, want map[string]any) {
	ranges, _ := want["clusterNetworks"].([]any)
	if len(ranges) == 0 {
		return
	}
	first, _ := ranges[0].(map[string]any)
	is := have["network"] == first["CIDR"]
	if _, says := want["network"]; !says {
		have["network"] = first["CIDR"]
	}
	switch _, says := want["hostsubnetlength"]; {
	case says:
	case first["hostSubnetLength"] != nil:
		have["hostsubnetlength"] = first["hostSubnetLength"]
	case !is:
		delete(have, "hostsubnetlength") // it was that of another range
	}
}

// mergeFields is a three-way merge of JSON objects, in which a list is one value:
// have gets what want says, and loses what last said and want does not. What neither
// ever named stays. A null takes away a field, and of an object what last said; no field
// has it for a value, be it within a list, so that what is made is what the same file would
// leave of it.
func mergeFields(have, last, want map[string]any) {
	for k, l := range last {
		if want[k] == nil {
			forget(have, k, l)
		}
	}
	for k, w := range want {
		wm, isObject := w.(map[string]any)
		hm, wasObject := have[k].(map[string]any)
		switch {
		case isObject:
			if !wasObject {
				hm = map[string]any{}
				have[k] = hm
			}
			lm, _ := last[k].(map[string]any)
			mergeFields(hm, lm, wm)
		case w != nil:
			have[k] = withoutNulls(w)
		case !wasObject:
			delete(have, k)
		}
	}
}

// withoutNulls returns a value without what is null in it, however deep. Of a list a null
// stays, as what is behind it would be another item then.
func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		said := make(map[string]any)
		for k, inner := range v {
			if inner != nil {
				said[k] = withoutNulls(inner)
			}
		}
		return said
	case []any:
		items := make([]any, len(v))
		for i, inner := range v {
			items[i] = withoutNulls(inner)
		}
		return items
	}
	return v
}

// forget takes from have what last said of a field, and the field itself where
// nothing is left of it.
func forget(have map[string]any, field string, last any) {
	hm, isObject := have[field].(map[string]any)
	lm, wasObject := last.(map[string]any)
	switch {
	case last == nil || wasObject && !isObject: // nothing of what it said is there
	case wasObject:
		for k, l := range lm {
			forget(hm, k, l)
		}
		if len(hm) == 0 {
			delete(have, field)
		}
	default:
		delete(have, field)
	}
}

func sameJSON(a, b any) bool {
	left, err1 := json.Marshal(a)
	right, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(left, right)
}

// convert turns one form of JSON into another.
func convert(from, to any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}
