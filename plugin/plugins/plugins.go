// Package plugins lists the plug-ins there are.
package plugins

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/openshift"
)

var all = byName(openshift.Subnet{}, flannel.Plugin{})

func byName(list ...plugin.Plugin) map[string]plugin.Plugin {
	m := make(map[string]plugin.Plugin, len(list))
	for _, p := range list {
		m[p.Name()] = p
	}
	return m
}

// Get returns the plug-in of that name.
func Get(name string) (plugin.Plugin, error) {
	if p, ok := all[name]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("plug-in %q is unknown: there are %s", name, strings.Join(Names(), ", "))
}

// Names lists the plug-ins in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(all)) }
