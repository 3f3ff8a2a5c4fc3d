package lab

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// slow is a registry of which the first requests fail, though some were done.
type slow struct {
	registry.Registry
	failures int
}

func (s *slow) Create(ctx context.Context, k *registry.Kind, o registry.Object, options ...registry.WriteOption) (registry.Object, error) {
	created, err := s.Registry.Create(ctx, k, o, options...)
	if s.failures--; s.failures >= 0 {
		return nil, registry.ErrUnavailable
	}
	return created, err
}

// TestPutAll has etcd be too slow at first, and then end.
func TestPutAll(t *testing.T) {
	config := &api.ClusterConfig{}
	config.Name = api.DefaultName
	objects := []Object{{api.ClusterConfigKind, config}}
	ended := errors.New("controller1 ended")
	for name, test := range map[string]struct {
		failures int
		ends     error
		want     error
	}{
		"at once":   {0, nil, nil},
		"is slow":   {5, nil, nil},
		"has ended": {1000, ended, ended},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := &slow{memory.New(), test.failures}
				if err := putAll(t.Context(), reg, objects, func() error { return test.ends }); err != test.want {
					t.Fatalf("the error is %v, want %v", err, test.want)
				}
				if _, err := reg.Get(t.Context(), api.ClusterConfigKind, registry.KeyOf(config)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
