package flannel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// ConfigName is the name of the only Config.
const ConfigName = "config"

// Config is flannel's network configuration. ParseSettings says what it means.
type Config struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the value of flannel's key as it is, or a JSON string of it
	// where it is not JSON.
	Spec json.RawMessage `json:"spec,omitempty"`
}

// Lease is a node's hold on a subnet. Its name is a Subnet's text form.
type Lease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the value of flannel's key as it is, or a JSON string of it
	// where it is not JSON. ParseAttributes says what it means.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Expires says that the lease ends when nobody renews it; one that does
	// not is a reservation.
	Expires bool `json:"expires,omitempty"`
	// Created is where in the registry's history the key was made, as
	// registry.Stored has it: of two leases the lesser is the older. Who writes a
	// lease cannot choose it.
	Created int64 `json:"created,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (c *Config) DeepCopyObject() runtime.Object {
	out := *c
	c.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec = slices.Clone(c.Spec)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *Lease) DeepCopyObject() runtime.Object {
	out := *l
	l.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec = slices.Clone(l.Spec)
	return &out
}

// Kinds returns the three kinds whose keys start with prefix, flanneld's
// -etcd-prefix. Each call makes new ones, so call it once for a prefix.
func Kinds(prefix string) (config, leases, reservations *registry.Kind) {
	prefix = path.Clean("/" + prefix)
	return configKind(prefix), leaseKind(prefix), reservationKind(prefix)
}

func configKind(prefix string) *registry.Kind {
	gvk := api.GroupVersion.WithKind("FlannelConfig")
	return &registry.Kind{
		GroupVersionKind: gvk, Plural: "flannelconfigs", Singular: "flannelconfig",
		New: func() registry.Object { return &Config{} },
		Validate: func(o registry.Object) error {
			if o.GetName() != ConfigName {
				return fmt.Errorf("metadata.name: %q must be %q, there is only one", o.GetName(), ConfigName)
			}
			_, err := ParseSettings(o.(*Config).Spec)
			return err
		},
		Layout: &registry.Layout{
			Prefix: prefix + "/config",
			Name:   ConfigName,
			Encode: func(o registry.Object) ([]byte, error) { return compact(o.(*Config).Spec) },
			Decode: func(_ string, value []byte, _ registry.Stored) (registry.Object, error) {
				c := &Config{Spec: spec(value)}
				c.SetGroupVersionKind(gvk)
				return c, nil
			},
		},
	}
}

func leaseKind(prefix string) *registry.Kind {
	gvk := api.GroupVersion.WithKind("FlannelLease")
	return &registry.Kind{
		GroupVersionKind: gvk, Plural: "flannelleases", Singular: "flannellease",
		New: func() registry.Object { return &Lease{} },
		Validate: func(o registry.Object) error {
			if _, err := ParseSubnet(o.GetName()); err != nil {
				return fmt.Errorf("metadata.name: %w", err)
			}
			_, err := ParseAttributes(o.(*Lease).Spec)
			return err
		},
		Layout: &registry.Layout{
			Prefix: prefix + "/subnets/",
			Encode: func(o registry.Object) ([]byte, error) { return compact(o.(*Lease).Spec) },
			// A value that cannot be read still holds its subnet, so it
			// becomes an object too; Compile says what is wrong with it.
			Decode: func(_ string, value []byte, stored registry.Stored) (registry.Object, error) {
				l := &Lease{Spec: spec(value), Expires: stored.Expires, Created: stored.Created}
				l.SetGroupVersionKind(gvk)
				return l, nil
			},
		},
	}
}

// NetConf is the key of ConfigMap that holds flannel's configuration.
const NetConf = "net-conf.json"

// ConfigMap is where flannel's manifest for Kubernetes keeps its configuration.
var ConfigMap = &registry.Kind{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Plural: "configmaps", Singular: "configmap",
	Namespaced: true,
	New:        func() registry.Object { return &corev1.ConfigMap{} },
	Keep: func(o registry.Object) {
		c := o.(*corev1.ConfigMap)
		c.ManagedFields, c.Labels, c.Annotations, c.BinaryData = nil, nil, nil, nil
		value, ok := c.Data[NetConf]
		c.Data = nil
		if ok {
			c.Data = map[string]string{NetConf: value}
		}
	},
	Only: registry.Key{Namespace: "kube-flannel", Name: "kube-flannel-cfg"},
}

func spec(value []byte) json.RawMessage {
	if json.Valid(value) {
		return slices.Clone(value)
	}
	quoted, _ := json.Marshal(string(value)) // a string always marshals
	return quoted
}

func compact(spec json.RawMessage) ([]byte, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, spec); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	return b.Bytes(), nil
}
