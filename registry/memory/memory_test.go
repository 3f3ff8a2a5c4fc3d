package memory_test

import (
	"log/slog"
	"testing"

	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
	"github.com/weftnet/weft/registry/registrytest"
)

func TestRegistry(t *testing.T) {
	registrytest.Run(t, func(_ *testing.T, log *slog.Logger) registrytest.Harness {
		r := memory.New()
		r.SetLog(log)
		return registrytest.Harness{
			Registry: r,
			Compact:  func(*testing.T) { r.Compact() },
			Stop:     func(*testing.T) { r.Stop() },
			Start:    func(*testing.T) { r.Start() },
			PutValue: func(_ *testing.T, k *registry.Kind, key registry.Key, value string) {
				r.PutValue(k, key, []byte(value))
			},
		}
	})
}
