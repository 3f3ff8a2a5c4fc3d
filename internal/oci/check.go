package oci

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// reference is REGISTRY/REPOSITORY:TAG. What it allows is what the distribution
// specification and containerd have in common.
var reference = regexp.MustCompile(`^(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*)(:[0-9]+)?` +
	`(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+` +
	`:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// check tells what is wrong with the image apart from its layers.
func (i Image) check() error {
	if len(i.Names) == 0 {
		return errors.New("the image has no name")
	}
	for n, name := range i.Names {
		host, _, _ := strings.Cut(name, "/")
		if !reference.MatchString(name) || host != "localhost" && !strings.ContainsAny(host, ".:") {
			return fmt.Errorf("image name %q: it must be complete, as docker.io/weftnet/weft:v1", name)
		}
		if slices.Contains(i.Names[:n], name) {
			return fmt.Errorf("image name %q is there twice", name)
		}
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("image %s: "+format, append([]any{i.Names[0]}, args...)...)
	}
	if i.Platform.OS == "" || i.Platform.Architecture == "" {
		return fail("its platform %q/%q is incomplete", i.Platform.OS, i.Platform.Architecture)
	}
	if len(i.Layers) == 0 {
		return fail("it has no layer")
	}
	for _, env := range i.Config.Env {
		if name, _, ok := strings.Cut(env, "="); !ok || name == "" {
			return fail("environment %q is not NAME=value", env)
		}
	}
	if dir := i.Config.WorkingDir; dir != "" && !strings.HasPrefix(dir, "/") {
		return fail("working directory %q is not absolute", dir)
	}
	// JSON has no times outside these years.
	if y := i.Created.UTC().Year(); !i.Created.IsZero() && (y < 1970 || y > 9999) {
		return fail("its time %v is not in the years 1970 to 9999", i.Created)
	}
	return nil
}

// tag returns the tag of a checked reference.
func tag(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }
