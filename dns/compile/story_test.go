package compile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestStories applies what each part of a story says to what there is, after taking away
// what its lines that begin with "delete" name, and tells what is other by it and what is left
// out.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var w world
		var c compile.Compiler
		var before *compile.Snapshot
		return golden.Answer(files, func(name, in string) string {
			w.apply(t, name, in)
			now := c.Compile(w.snapshot())
			if err := check(&c, w); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			var out strings.Builder
			changed, gone := now.Since(before)
			for _, k := range gone {
				fmt.Fprintf(&out, "- %s\n", k)
			}
			for _, s := range changed {
				out.WriteString(text(s))
			}
			if before == nil || !slices.Equal(before.Namespaces, now.Namespaces) {
				fmt.Fprintf(&out, "namespaces: %v\n", now.Namespaces)
			}
			before = now
			for _, p := range c.Problems() {
				fmt.Fprintf(&out, "%s %s: %s\n", p.Kind.Kind, p.Key, p.Message)
			}
			if out.Len() == 0 {
				return "nothing changes\n"
			}
			return out.String()
		})
	})
}

// check holds what a Compiler has against what a new one makes of the same objects.
func check(c *compile.Compiler, w world) error {
	objects, fresh := w.snapshot(), new(compile.Compiler)
	now, anew := c.Compile(objects), fresh.Compile(objects)
	problems, same := fmt.Sprint(c.Problems()), fmt.Sprint(fresh.Problems())
	if !slices.EqualFunc(now.Services, anew.Services, (*records.Service).Equal) || !slices.Equal(now.Namespaces, anew.Namespaces) || problems != same {
		return fmt.Errorf("step by step it is\n%s%s\nand at once\n%s%s", texts(now), problems, texts(anew), same)
	}
	if again := c.Compile(objects); again != now {
		return fmt.Errorf("nothing changes, and the snapshot does")
	}
	return nil
}

func texts(s *compile.Snapshot) string {
	var out strings.Builder
	for _, s := range s.Services {
		out.WriteString(text(s))
	}
	return out.String() + fmt.Sprintln(s.Namespaces)
}

func text(s *records.Service) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s:", s.Key)
	switch {
	case s.Headless():
		out.WriteString(" headless")
	case s.External != "":
		out.WriteString(" " + s.External)
	}
	for _, a := range s.Addresses {
		fmt.Fprintf(&out, " %s", a)
	}
	fmt.Fprintln(&out, portsText(s.Ports))
	for _, e := range s.Endpoints {
		fmt.Fprintf(&out, "  %s", e.Address)
		if e.Hostname != "" {
			fmt.Fprintf(&out, " (%s)", e.Hostname)
		}
		fmt.Fprintln(&out, portsText(e.Ports))
	}
	return out.String()
}

func portsText(ports []records.Port) (out string) {
	for _, p := range ports {
		out += fmt.Sprintf(" %s/%s:%d", p.Name, p.Protocol, p.Port)
	}
	return out
}

// world is all objects there are.
type world map[*registry.Kind]map[registry.Key]registry.Object

func (w *world) apply(t *testing.T, name, in string) {
	if *w == nil {
		*w = make(world)
	}
	var yaml strings.Builder
	for l := range strings.Lines(in) {
		what, deletes := strings.CutPrefix(strings.TrimSpace(l), "delete ")
		if !deletes {
			yaml.WriteString(l)
			continue
		}
		singular, key, _ := strings.Cut(what, " ")
		namespace, object, namespaced := strings.Cut(key, "/")
		if !namespaced {
			namespace, object = "", key
		}
		for k := range *w {
			if k.Singular == singular {
				delete((*w)[k], registry.Key{Namespace: namespace, Name: object})
			}
		}
	}
	all, err := api.Decode([]byte(yaml.String()), compile.Kinds)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, d := range all {
		w.put(d.Kind, d.Object)
	}
}

func (w world) put(k *registry.Kind, o registry.Object) {
	if w[k] == nil {
		w[k] = make(map[registry.Key]registry.Object)
	}
	w[k][registry.KeyOf(o)] = o
}

func (w world) snapshot() registry.Snapshot {
	objects := make(map[*registry.Kind][]registry.Object)
	for k, all := range w {
		for _, o := range all {
			objects[k] = append(objects[k], o)
		}
	}
	return registry.NewSnapshot(objects)
}
