package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// membered is a registry that has members.
type membered struct {
	registry.Registry
	members []string
	err     error
}

func (m membered) Members(context.Context) ([]string, error) { return m.members, m.err }

// TestMembers has controllers bear the loss of a machine that their registry does
// not bear.
func TestMembers(t *testing.T) {
	two := map[string]string{api.ControllerLease: "a", api.LivingControllerLease("a"): "a", api.LivingControllerLease("b"): "b"}
	one := map[string]string{api.ControllerLease: "a", api.LivingControllerLease("a"): "a"}
	for name, test := range map[string]struct {
		reg  registry.Registry
		held map[string]string
		want string
	}{
		"one of each":     {membered{members: []string{"x"}}, one, ""},
		"one under two":   {membered{members: []string{"x"}}, two, "etcd: it has one member, x, under 2 controllers (a, b): who loses that machine loses the registry"},
		"three under two": {membered{members: []string{"x", "y", "z"}}, two, ""},
		"not to be told":  {membered{err: errors.New("it wants a user name")}, two, "etcd: whether it bears the loss of a machine is not known: it wants a user name"},
		"not asked":       {membered{err: errors.New("it wants a user name")}, one, ""},
		"another kind":    {memory.New(), two, ""},
	} {
		var l problemList
		membersProblem(t.Context(), &l, test.reg, test.held)
		var text strings.Builder
		for _, p := range l.list {
			text.WriteString(p.String())
		}
		if got := text.String(); !strings.HasPrefix(got, test.want) || (test.want == "") != (got == "") {
			t.Errorf("%s: it says %q, want %q", name, got, test.want)
		}
	}
}
