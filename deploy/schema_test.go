package deploy

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
)

// crd is what the tests look at of the definition of a kind.
type crd struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		Group string
		Names struct {
			Kind, ListKind, Plural, Singular string
		}
		Scope    string
		Versions []struct {
			Name            string
			Served, Storage bool
			Subresources    struct{ Status *struct{} }
			Schema          struct {
				OpenAPIV3Schema *schema `json:"openAPIV3Schema"`
			}
		}
	}
}

// schema is what the tests look at of a structural schema.
type schema struct {
	Type, Format, Description string
	Properties                map[string]*schema
	AdditionalProperties      *schema
	Items                     *schema
	Required                  []string
	MaxLength, MaxItems       *int
	Validations               []struct {
		Rule, Message, MessageExpression string
	} `json:"x-kubernetes-validations"`
	PreserveUnknown bool `json:"x-kubernetes-preserve-unknown-fields"`
}

// goTypes are the types of the kinds, by the names of their definitions.
var goTypes = map[string]any{
	"clusterconfigs.weft.network":                api.ClusterConfig{},
	"clusternetworks.network.openshift.io":       networkv1.ClusterNetwork{},
	"hostsubnets.network.openshift.io":           networkv1.HostSubnet{},
	"netnamespaces.network.openshift.io":         networkv1.NetNamespace{},
	"egressnetworkpolicies.network.openshift.io": networkv1.EgressNetworkPolicy{},

	"clusternetworkpolicies.policy.networking.k8s.io": policyv1alpha2.ClusterNetworkPolicy{},

	"addresspools.weft.network":     api.AddressPool{},
	"addressgrants.weft.network":    api.AddressGrant{},
	"virtualaddresses.weft.network": api.VirtualAddress{},
	"tags.weft.network":             api.Tag{},
	"nodepods.weft.network":         api.NodePods{},
	"nodereports.weft.network":      api.NodeReport{},
	"domainnames.weft.network":      api.DomainName{},
}

// crds reads the definitions of the kinds, by their names.
func crds(t *testing.T) map[string]*crd {
	t.Helper()
	files, err := filepath.Glob("chart/files/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no kinds: %v", err)
	}
	all := map[string]*crd{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var c crd
		if err := yaml.Unmarshal(text, &c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if want := c.Spec.Group + "_" + c.Spec.Names.Plural + ".yaml"; filepath.Base(file) != want {
			t.Errorf("%s should be called %s", file, want)
		}
		all[c.Metadata.Name] = &c
	}
	return all
}

func TestSchemasAreOfTheGoTypes(t *testing.T) {
	all := crds(t)
	if got, want := slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(goTypes)); !slices.Equal(got, want) {
		t.Fatalf("there are %v, want %v", got, want)
	}
	for name, c := range all {
		if len(c.Spec.Versions) != 1 {
			t.Fatalf("%s has %d versions", name, len(c.Spec.Versions))
		}
		v := c.Spec.Versions[0]
		if !v.Served || !v.Storage {
			t.Errorf("%s %s is not served or not stored", name, v.Name)
		}
		compare(t, name, v.Schema.OpenAPIV3Schema, reflect.TypeOf(goTypes[name]))
	}
}

// TestStatusNamesAsManyNodesAsMayBeWritten holds the definition to what is written at most of
// the nodes that use another plug-in: an API server would refuse more for ever.
func TestStatusNamesAsManyNodesAsMayBeWritten(t *testing.T) {
	nodes := crds(t)["clusterconfigs.weft.network"].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["pluginNodes"]
	if nodes.MaxItems == nil || *nodes.MaxItems != api.MaxChangedNodes {
		t.Errorf("status.pluginNodes takes %v nodes, and %d may be written: set its maxItems to that", nodes.MaxItems, api.MaxChangedNodes)
	}
}

// compare holds a schema against a Go type, in both directions.
func compare(t *testing.T, path string, s *schema, goType reflect.Type) {
	t.Helper()
	for goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	want, ok := map[reflect.Kind]string{reflect.String: "string", reflect.Struct: "object", reflect.Map: "object", reflect.Slice: "array",
		reflect.Int: "integer", reflect.Int32: "integer", reflect.Int64: "integer", reflect.Uint32: "integer", reflect.Bool: "boolean"}[goType.Kind()]
	if goType == reflect.TypeFor[metav1.Time]() {
		want = "string"
		if s.Format != "date-time" {
			t.Errorf("%s is a time, and has format %q", path, s.Format)
		}
	}
	if !ok || s.Type != want {
		t.Errorf("%s has type %q; the Go type %s wants %q", path, s.Type, goType, want)
		return
	}
	switch {
	case goType == reflect.TypeFor[metav1.ObjectMeta](), want == "string", want == "integer", want == "boolean":
	case goType.Kind() == reflect.Slice:
		compare(t, path+"[]", s.Items, goType.Elem())
	case goType.Kind() == reflect.Map:
		compare(t, path+"{}", s.AdditionalProperties, goType.Elem())
	default:
		fields := jsonFields(goType)
		for name, field := range fields {
			if property := s.Properties[name]; property != nil {
				compare(t, path+"."+name, property, field)
			} else {
				t.Errorf("%s.%s is in the Go type, and not in the schema", path, name)
			}
		}
		for name := range s.Properties {
			if fields[name] == nil {
				t.Errorf("%s.%s is in the schema, and not in the Go type", path, name)
			}
		}
	}
}

// jsonFields returns the types of a struct's fields by their JSON names.
func jsonFields(goType reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range goType.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && strings.Contains(options, "inline") {
			maps.Copy(fields, jsonFields(f.Type))
			continue
		}
		fields[name] = f.Type
	}
	return fields
}

// TestSchemasExplainThemselves holds schemas to what kubectl explain and the
// reader of an error want, and to what keeps the rules cheap.
func TestSchemasExplainThemselves(t *testing.T) {
	for name, c := range crds(t) {
		explain(t, name, c.Spec.Versions[0].Schema.OpenAPIV3Schema)
	}
}

func explain(t *testing.T, path string, s *schema) {
	t.Helper()
	if s.PreserveUnknown {
		t.Errorf("%s keeps fields that nobody knows", path)
	}
	for _, v := range s.Validations {
		if v.Message == "" && v.MessageExpression == "" {
			t.Errorf("%s: the rule %s does not say what is wrong", path, v.Rule)
		}
		if s.Type == "string" && s.MaxLength == nil {
			t.Errorf("%s has rules, and no greatest length", path)
		}
	}
	for _, r := range s.Required {
		if s.Properties[r] == nil {
			t.Errorf("%s requires %s, which it does not have", path, r)
		}
	}
	for name, property := range s.Properties {
		where := path + "." + name
		if property.Description == "" && !slices.Contains([]string{"apiVersion", "kind", "metadata"}, name) {
			t.Errorf("%s says nothing of itself", where)
		}
		explain(t, where, property)
	}
	for _, below := range []*schema{s.Items, s.AdditionalProperties} {
		if below != nil {
			explain(t, path+"[]", below)
		}
	}
}

// TestKindsAreThoseOfTheRegistry holds the definitions against what Weft's
// registries believe of the kinds.
func TestKindsAreThoseOfTheRegistry(t *testing.T) {
	all := crds(t)
	checked := 0
	for _, k := range api.Kinds {
		c := all[k.Plural+"."+k.Group]
		if c == nil {
			continue
		}
		checked++
		n := c.Spec.Names
		got := fmt.Sprint(c.Spec.Group, c.Spec.Versions[0].Name, n.Kind, n.ListKind, n.Plural, n.Singular, c.Spec.Scope == "Namespaced", c.Spec.Versions[0].Subresources.Status != nil)
		want := fmt.Sprint(k.Group, k.Version, k.Kind, k.Kind+"List", k.Plural, k.Singular, k.Namespaced, k.StatusApart)
		if got != want {
			t.Errorf("%s: the definition says %s, the registry %s", k.Kind, got, want)
		}
	}
	if checked < 3 {
		t.Errorf("%d of Weft's kinds have definitions", checked)
	}
}

// TestClusterNetworkPolicyIsUpstreams holds our definition against that of the
// module whose Go types we use: they must take the same objects.
func TestClusterNetworkPolicyIsUpstreams(t *testing.T) {
	const file = "policy.networking.k8s.io_clusternetworkpolicies.yaml"
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) (spec any) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var o map[string]any
		if err := yaml.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		return rules(o["spec"])
	}
	theirs := read(filepath.Join(strings.TrimSpace(string(module)), "config/crd/experimental", file))
	if diff := cmp.Diff(theirs, read(filepath.Join("chart/files/crds", file))); diff != "" {
		t.Errorf("(-theirs +ours):\n%s", diff)
	}
}

// rules returns a definition's spec without descriptions, and with the lists
// that mean sets in order.
func rules(v any) any {
	switch v := v.(type) {
	case map[string]any:
		kept := map[string]any{}
		for key, below := range v {
			if _, text := below.(string); key == "description" && text {
				continue
			}
			kept[key] = rules(below)
			if list, ok := below.([]any); ok && (key == "required" || key == "enum") {
				slices.SortFunc(list, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
			}
		}
		return kept
	case []any:
		for i := range v {
			v[i] = rules(v[i])
		}
	}
	return v
}
