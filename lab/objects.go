package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/datapath/dataplanes"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

// Where the lab's pods get their addresses from, unless Options.Objects says.
const (
	openshiftIPv6 = "fd01::/48"
	flannelIPv4   = "10.5.0.0/16"
	flannelIPv6   = "fd05::/48"
)

// Where the lab's Services get theirs from, unless Options.Objects says.
const (
	serviceIPv4 = "10.96.0.0/16"
	serviceIPv6 = "fd96::/112"
)

// What a packet takes in the tunnel in bytes: Ethernet inside, VXLAN (RFC 7348), UDP,
// and IPv4 or IPv6, by which nodes reach each other; and the least MTU with which pods
// can have IPv6 (RFC 8200, section 5).
const (
	overheadIPv4 = 14 + 8 + 8 + 20
	overheadIPv6 = 14 + 8 + 8 + 40
	leastIPv6MTU = 1280
)

// Object is an object that a lab begins with.
type Object struct {
	Kind *registry.Kind
	registry.Object
}

// objects returns the objects that the lab begins with: the ClusterConfig, and
// the plug-in's own configuration where it does not do without one, and with names
// the Service at which pods ask for these.
func (o *Options) objects() ([]Object, error) {
	config := api.Effective(&api.ClusterConfig{
		ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
		Spec:       api.ClusterConfigSpec{Plugin: o.Plugin, DataPlane: o.DataPlane},
	})
	if _, err := plugins.Get(config.Spec.Plugin); err != nil {
		return nil, err
	}
	if err := dataplanes.Check(config.Spec.DataPlane); err != nil {
		return nil, err
	}
	objects := slices.Clone(o.Objects)
	has := func(k *registry.Kind) bool {
		return slices.ContainsFunc(o.Objects, func(have Object) bool { return have.Kind == k })
	}
	add := func(k *registry.Kind, object registry.Object) {
		if !has(k) {
			objects = append(objects, Object{k, object})
		}
	}
	overhead := overheadIPv4
	if plugins.Base(config.Spec.Plugin) == flannel.Name {
		overhead = overheadIPv6 // its tunnel for pods' IPv6 is over that of nodes
	}
	// Whoever configures the plug-in may do without the tunnel.
	if least := leastIPv6MTU + overhead; o.IPv6 && o.MTU != 0 && o.MTU < least && !has(api.ClusterNetwork) && !has(flannel.ConfigKind) {
		return nil, fmt.Errorf("the MTU of the links of a lab with IPv6 is %d to 65535, not %d: pods' IPv6 takes packets of %d bytes, and the tunnel %d more",
			least, o.MTU, leastIPv6MTU, overhead)
	}
	if !has(api.ClusterNetwork) { // which may say where
		config.Spec.ServiceNetworks = []string{serviceIPv4}
		if o.IPv6 {
			config.Spec.ServiceNetworks = append(config.Spec.ServiceNetworks, serviceIPv6)
		}
	}
	if o.DNS {
		config.Spec.DNS.Server = api.NamesByNodes
	}
	add(api.ClusterConfigKind, config)
	switch plugins.Base(config.Spec.Plugin) {
	case openshift.Name:
		if o.IPv6 {
			add(api.ClusterNetwork, &networkv1.ClusterNetwork{
				ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
				ClusterNetworks: []networkv1.ClusterNetworkEntry{
					{CIDR: openshift.DefaultCIDR, HostSubnetLength: openshift.DefaultHostBits},
					{CIDR: openshiftIPv6, HostSubnetLength: openshift.DefaultHostBitsIPv6},
				},
			})
		}
	case flannel.Name:
		settings := map[string]any{"Network": flannelIPv4, "Backend": map[string]string{"Type": flannel.BackendVXLAN}}
		if o.IPv6 {
			settings["EnableIPv6"], settings["IPv6Network"] = true, flannelIPv6
		}
		spec, err := json.Marshal(settings)
		if err != nil {
			return nil, err
		}
		add(flannel.ConfigKind, &flannel.Config{ObjectMeta: metav1.ObjectMeta{Name: flannel.ConfigName}, Spec: spec})
	}
	if o.DNS {
		objects = append(objects, nameObjects(objects)...)
	}
	return objects, nil
}

// createObjects creates the objects that the lab begins with.
func (l *Lab) createObjects(ctx context.Context, objects []Object) error {
	reg, err := l.Registry()
	if err != nil {
		return err
	}
	defer reg.Close()
	daemon := l.etcdDaemon()
	return putAll(ctx, reg, objects, func() error {
		if l.PID(daemon) == 0 {
			return l.ended(daemon)
		}
		return nil
	})
}

// putAll creates objects, or puts them in the place of others. On a busy machine etcd
// may be too slow for a first request; as long as it is awaited, which lives says, it is
// asked again.
func putAll(ctx context.Context, reg registry.Registry, objects []Object, lives func() error) error {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for _, o := range objects {
		for {
			err := put(ctx, reg, o)
			if err == nil {
				break
			}
			if !errors.Is(err, registry.ErrUnavailable) {
				return err
			}
			if ended := lives(); ended != nil {
				return ended
			}
			select {
			case <-again.C:
			case <-ctx.Done():
				return err
			}
		}
	}
	return nil
}

// put creates an object, or puts it in the place of what a controller may have
// made by default meanwhile.
func put(ctx context.Context, reg registry.Registry, o Object) error {
	for {
		_, err := reg.Create(ctx, o.Kind, o.Object)
		if !errors.Is(err, registry.ErrExists) {
			return err
		}
		have, err := reg.Get(ctx, o.Kind, registry.KeyOf(o))
		if err != nil {
			return err
		}
		want := o.DeepCopyObject().(registry.Object)
		want.SetResourceVersion(have.GetResourceVersion())
		if _, err := reg.Update(ctx, o.Kind, want); !errors.Is(err, registry.ErrConflict) {
			return err
		}
	}
}
