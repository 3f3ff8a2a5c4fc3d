package service_test

import (
	"fmt"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/service"
)

// TestChecks tells what node1 is asked, after each part of a story.
func TestChecks(t *testing.T) {
	golden.Archives(t, "testdata/asked/*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var w world
		var c service.Checker
		return golden.Answer(files, func(name, in string) (out string) {
			w.apply(t, name, in)
			checks, problems := c.Checks(w.snapshot(), node.Node)
			anew, same := new(service.Checker).Checks(w.snapshot(), node.Node)
			if fmt.Sprint(checks, problems) != fmt.Sprint(anew, same) {
				t.Errorf("%s: step by step it is %v %v, and at once %v %v", name, checks, problems, anew, same)
			}
			for _, check := range checks {
				out += fmt.Sprintf("port %d: Service %s has %d\n", check.Port, check.Service, check.Local)
			}
			for _, p := range problems {
				out += fmt.Sprintf("%s %s: %s\n", p.Kind.Kind, p.Key, p.Message)
			}
			if out == "" {
				out = "nothing is asked\n"
			}
			return out
		})
	})
}
