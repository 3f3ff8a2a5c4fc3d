package removal

import (
	"errors"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"
)

// server returns a client of an API server that has some objects. As any API server, and not as the fake alone, it
// creates nothing that has a resourceVersion.
func server(t *testing.T, objects ...runtime.Object) *fake.FakeDynamicClient {
	t.Helper()
	objects = slices.Clone(objects)
	lists := map[schema.GroupVersionResource]string{crds: "CustomResourceDefinitionList", nodes: "NodeList", pods: "PodList", endpointSlices: "EndpointSliceList"}
	for _, o := range owned {
		lists[o.GroupVersionResource] = o.Resource + "List"
	}
	// The fake holds what is written as it is written, and lists no mixture of that and of Go types.
	for i, o := range objects {
		objects[i] = unstructure(t, o)
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	client.PrependReactor("create", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		o, err := meta.Accessor(a.(k8stesting.CreateAction).GetObject())
		if err == nil && o.GetResourceVersion() != "" {
			err = apierrors.NewInternalError(errors.New("resourceVersion should not be set on objects to be created"))
		}
		return err != nil, nil, err
	})
	return client
}

// unstructure returns an object as the fake holds those that are written.
func unstructure(t *testing.T, o runtime.Object) *unstructured.Unstructured {
	t.Helper()
	if u, ok := o.(*unstructured.Unstructured); ok {
		return u
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	u := &unstructured.Unstructured{}
	if err := scheme.Convert(o, u, nil); err != nil {
		t.Fatal(err)
	}
	return u
}
