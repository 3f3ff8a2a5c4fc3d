package controller

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// directory makes a directory of files, whose contents follow their names.
func directory(t *testing.T, namesAndTexts ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(namesAndTexts); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, namesAndTexts[i]), []byte(namesAndTexts[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const (
	flannelConfig = "apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {plugin: flannel}\n"
	pods10        = `{"apiVersion": "network.openshift.io/v1", "kind": "ClusterNetwork", "metadata": {"name": "default"},
 "serviceNetwork": "", "clusterNetworks": [{"CIDR": "10.10.0.0/16", "hostSubnetLength": 8}]}`
)

var quiet = slog.New(slog.DiscardHandler)

func TestSeedMakesWhatThereIsNot(t *testing.T) {
	r := memory.New()
	configure(t, r, "openshift-subnet")
	dir := directory(t, "network.json", pods10, "config.yaml", "# what a user chose stays\n---\n"+flannelConfig,
		"README", "not YAML: [", "..data.yaml", "neither: [", ".config.yaml.swp", "[")
	for range 2 {
		if err := Seed(t.Context(), r, dir, quiet); err != nil {
			t.Fatal(err)
		}
	}
	o, err := r.Get(t.Context(), api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if err != nil {
		t.Fatal(err)
	}
	if plugin := o.(*api.ClusterConfig).Spec.Plugin; plugin != "openshift-subnet" {
		t.Errorf("the plug-in that a user chose became %q", plugin)
	}
	if _, err := r.Get(t.Context(), api.ClusterNetwork, registry.Key{Name: api.DefaultName}); err != nil {
		t.Error(err)
	}
}

// picky is a registry that does not serve a kind.
type picky struct {
	registry.Registry
	without *registry.Kind
}

func (p picky) Serves(k *registry.Kind) bool { return k != p.without }

func TestSeedThatCannotBeMakesNothing(t *testing.T) {
	for name, test := range map[string]struct{ file, text, want string }{
		"not YAML":      {"b.yaml", "a: [", "b.yaml: "},
		"another kind":  {"b.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n", "unknown kind v1 Secret"},
		"unknown field": {"b.yaml", strings.ReplaceAll(flannelConfig, "plugin", "plugIn"), `clusterconfig default: unknown field "spec.plugIn"`},
		"not valid":     {"b.yaml", "\n" + strings.ReplaceAll(flannelConfig, "default", "mine"), "b.yaml: line 1: clusterconfig mine: invalid: metadata.name"},
		"not served":    {"b.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\n", "b.yaml: line 1: the registry has no nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			r := picky{memory.New(), api.Node}
			err := Seed(t.Context(), r, directory(t, "a.json", pods10, test.file, test.text), quiet)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
			if objects, _, err := r.List(t.Context(), api.ClusterNetwork); err != nil || len(objects) != 0 {
				t.Errorf("made %v, %v", objects, err)
			}
		})
	}
	missing := filepath.Join(t.TempDir(), "seed")
	if err := Seed(t.Context(), memory.New(), missing, quiet); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func TestSeedWaitsForTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		r.Stop()
		dir := directory(t, "config.yaml", flannelConfig)
		ended := make(chan error, 1)
		go func() { ended <- Seed(t.Context(), r, dir, quiet) }()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("ended before the registry answered: %v", err)
		default:
		}
		r.Start()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if _, err := r.Get(t.Context(), api.ClusterConfigKind, registry.Key{Name: api.DefaultName}); err != nil {
			t.Error(err)
		}
	})
}

func TestSeedEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		r.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), lastRetry)
		defer cancel()
		err := Seed(ctx, r, directory(t, "config.yaml", flannelConfig), quiet)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
