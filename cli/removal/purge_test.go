package removal

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

// definition reads a custom resource's definition.
func definition(t *testing.T, text []byte) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// purged purges, and returns the definitions that are left.
func purged(t *testing.T, client *fake.FakeDynamicClient) (left []string) {
	t.Helper()
	r := New(client, Options{Namespace: "weft-system", Purge: true, Poll: 10 * time.Millisecond, Progress: func(string) {}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // or what waits for ever would
	defer cancel()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.each(ctx, crds, "", "", func(o *unstructured.Unstructured) error { left = append(left, o.GetName()); return nil }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(left)
	return left
}

// TestPurge has the definitions of the chart in a cluster, and others: all of the chart go but the one that is upstream's.
func TestPurge(t *testing.T) {
	files, err := filepath.Glob("../../deploy/chart/files/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	objects := []runtime.Object{
		definition(t, []byte(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: looms.example.org}, spec: {group: example.org, names: {plural: looms, categories: [weft]}}}`)),
		definition(t, []byte(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: egressrouters.network.openshift.io}, spec: {group: network.openshift.io, names: {plural: egressrouters}}}`)),
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, definition(t, text))
	}
	want := []string{"clusternetworkpolicies.policy.networking.k8s.io", "egressrouters.network.openshift.io", "looms.example.org"}
	if left := purged(t, server(t, objects...)); !slices.Equal(left, want) {
		t.Errorf("these are left: %s, want %s", strings.Join(left, ", "), strings.Join(want, ", "))
	}
}

// TestPurgeWaits has a definition that goes only after its objects, as all do.
func TestPurgeWaits(t *testing.T) {
	const name = "tags.weft.network"
	client := server(t, definition(t, []byte(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: `+name+`, deletionTimestamp: '2026-01-02T03:04:05Z'}, spec: {group: weft.network, names: {plural: tags, categories: [weft]}}}`)))
	client.PrependReactor("delete", crds.Resource, func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
	reads := 0
	client.PrependReactor("get", crds.Resource, func(k8stesting.Action) (bool, runtime.Object, error) {
		if reads++; reads == 2 {
			return false, nil, client.Tracker().Delete(crds, "", name)
		}
		return false, nil, nil
	})
	if left := purged(t, client); len(left) > 0 {
		t.Errorf("%q is there still", left)
	}
}
