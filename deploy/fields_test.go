package deploy

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/service/control"
	"github.com/weftnet/weft/service/pools"
)

const (
	kindsPage = "../docs/kinds.md"
	// madeBelow begins the line of that page below which all is made.
	madeBelow = "<!-- What follows is made "
)

// The page has the fields of all kinds of Weft's own, with what their definitions say of them.
func TestKindsHaveTheirFieldsOnThePage(t *testing.T) {
	page, err := os.ReadFile(kindsPage)
	if err != nil {
		t.Fatal(err)
	}
	byHand, rest, found := strings.Cut(string(page), madeBelow)
	line, _, ends := strings.Cut(rest, "\n")
	if !found || !ends {
		t.Fatalf("%s has no line that begins with %q", kindsPage, madeBelow)
	}
	all := crds(t)
	var made strings.Builder
	made.WriteString(byHand + madeBelow + line + "\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].Spec.Group != api.GroupVersion.Group {
			continue
		}
		of := all[name].Spec.Versions[0].Schema.OpenAPIV3Schema
		fmt.Fprintf(&made, "\n### %s\n\n%s\n\n| Field | Type | Meaning |\n|---|---|---|\n", all[name].Spec.Names.Kind, inCell(of.Description))
		of.rows(&made, "")
	}
	golden.File(t, kindsPage, []byte(made.String()))
}

// rows writes a row for each field that says what it is, and for those in it.
func (s *schema) rows(b *strings.Builder, path string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field, at := s.Properties[name], path+name
		is, within, inner := field.kind()
		if slices.Contains(s.Required, name) {
			is += ", required"
		}
		if field.Description != "" {
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", at, is, inCell(field.Description))
		}
		if within != nil {
			within.rows(b, at+inner)
		}
	}
}

// kind says of what type a field is, and what is in it, if that is to be told, behind which path.
func (s *schema) kind() (is string, within *schema, path string) {
	switch {
	case s.Properties["matchLabels"] != nil:
		return "label selector", nil, ""
	case s.Items != nil && s.Items.Properties["lastTransitionTime"] != nil:
		return "list of conditions", nil, ""
	case s.Items != nil:
		return "list of " + s.Items.Type + "s", s.Items, "[]."
	case s.AdditionalProperties != nil:
		return "map of " + s.AdditionalProperties.Type + "s", s.AdditionalProperties, ".*."
	}
	return s.Type, s, "."
}

// inCell is a text as a cell of a table.
func inCell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// Each condition, annotation and label of Weft's is on the page.
func TestKindsHaveTheirNamesOnThePage(t *testing.T) {
	page, err := os.ReadFile(kindsPage)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, name := range []string{api.PluginChanged, api.PoolUsable, openshift.SubnetsAvailable, openshift.ClusterNetworkValid, networkpolicy.Enforced,
		control.Served, control.Granted, pools.Pooled, string(api.NodeInSync)} {
		names[name] = true
	}
	quoted := regexp.MustCompile(`"(weft\.network/[A-Za-z-]+)"`)
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		// Packages that are for tests have names of their own.
		if err == nil && d.IsDir() && (strings.HasSuffix(d.Name(), "test") || d.Name() == ".git") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range quoted.FindAllSubmatch(text, -1) {
			names[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !names[api.ServiceProxyAnnotation] {
		t.Fatalf("%s is not among the names that are found: %v", api.ServiceProxyAnnotation, slices.Sorted(maps.Keys(names)))
	}
	for name := range names {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("%s does not have %s", kindsPage, name)
		}
	}
}
