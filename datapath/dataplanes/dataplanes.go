// Package dataplanes lists the data planes there are.
package dataplanes

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux"
)

// Planes are data planes by their names. Each function returns one for the network
// namespace of the calling process.
type Planes map[string]func(*slog.Logger) (datapath.DataPlane, error)

// All returns the data planes there are.
func All() Planes {
	return Planes{
		"linux": func(log *slog.Logger) (datapath.DataPlane, error) { return linux.New(linux.Config{Log: log}) },
	}
}

// Names lists the data planes there are in alphabetical order.
func Names() []string { return All().Names() }

// New returns the data plane of that name, for the network namespace of the
// calling process.
func (p Planes) New(name string, log *slog.Logger) (datapath.DataPlane, error) {
	if make, ok := p[name]; ok {
		return make(log)
	}
	return nil, p.unknown(name)
}

// Check says that there is no data plane of a name, and which there are.
func Check(name string) error {
	if all := All(); all[name] == nil {
		return all.unknown(name)
	}
	return nil
}

func (p Planes) unknown(name string) error {
	are := "are"
	if len(p) == 1 {
		are = "is"
	}
	return fmt.Errorf("data plane %q is unknown: there %s %s", name, are, strings.Join(p.Names(), ", "))
}

// Names lists them in alphabetical order.
func (p Planes) Names() []string { return slices.Sorted(maps.Keys(p)) }
