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

var all = map[string]func(*slog.Logger) (datapath.DataPlane, error){
	"linux": func(log *slog.Logger) (datapath.DataPlane, error) { return linux.New(linux.Config{Log: log}) },
}

// New returns the data plane of that name, for the network namespace of the
// calling process.
func New(name string, log *slog.Logger) (datapath.DataPlane, error) {
	if make, ok := all[name]; ok {
		return make(log)
	}
	return nil, fmt.Errorf("data plane %q is unknown: there are %s", name, strings.Join(Names(), ", "))
}

// Names lists the data planes in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(all)) }
