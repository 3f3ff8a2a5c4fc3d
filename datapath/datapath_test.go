package datapath

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestConcerning(t *testing.T) {
	mine, others := &EndpointError{Interface: "weftmine", Name: "default/mine", Err: ErrMissing}, &EndpointError{Interface: "weftgone", Name: "default/gone", Err: ErrMissing}
	kernel, route := errors.New("no buffer space"), &EntryError{Entry: "add route 10.1.2.0/24", Err: errors.New("another's is in the way")}
	refused := &EndpointError{Interface: "weftmine", Name: "default/mine", Err: route}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"nothing failed", nil, ""},
		{"another's interface", others, ""},
		{"another's interface, in words", fmt.Errorf("repair: %w", errors.Join(others)), ""},
		{"mine", mine, mine.Error()},
		{"mine, as a route is refused", refused, refused.Error()},
		{"mine, as a route is refused, and other routes", errors.Join(route, refused), refused.Error()},
		{"another's, as a route is refused", &EndpointError{Interface: "weftgone", Name: "default/gone", Err: route}, ""},
		{"mine and another's", errors.Join(others, mine), mine.Error()},
		{"a route", errors.Join(route, others), ""},
		{"a route, and the kernel", errors.Join(route, kernel), kernel.Error()},
		{"the kernel, and another's interface", errors.Join(kernel, others), kernel.Error()},
		{"the kernel, hidden behind a missing interface", fmt.Errorf("repair: %w", errors.Join(others, kernel)), "repair: " + others.Error() + "\n" + kernel.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := Concerning(c.err, "weftmine"); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if err := Concerning(errors.Join(route, others)); err == nil || err.Error() != "add route 10.1.2.0/24: another's is in the way" {
		t.Errorf("of a plan that lacks a route it is said: %v", err)
	}
	if !errors.Is(mine, ErrMissing) {
		t.Error("an EndpointError does not wrap what is wrong")
	}
}

// A pod may leave while a plan is applied: what is missing is told once two plans in a
// row missed it, and everything else at once.
func TestLasting(t *testing.T) {
	a, b := &EndpointError{Interface: "wefta", Name: "default/a", Err: ErrMissing}, &EndpointError{Interface: "weftb", Name: "default/b", Err: ErrMissing}
	refused := &EndpointError{Interface: "wefta", Name: "default/a", Err: errors.New("no buffer space")}
	kernel := errors.New("permission denied")
	for _, c := range []struct {
		name        string
		err, before error
		want        string
	}{
		{"nothing failed", nil, errors.Join(a), ""},
		{"the first is missing", errors.Join(a), nil, ""},
		{"it still is", errors.Join(a), fmt.Errorf("apply: %w", errors.Join(a)), a.Error()},
		{"another is, too", fmt.Errorf("apply: %w", errors.Join(b)), errors.Join(a), ""},
		{"and the kernel fails", errors.Join(kernel, b), errors.Join(a), kernel.Error()},
		{"what is there is refused", errors.Join(refused), nil, refused.Error()},
		{"it was refused, and went", errors.Join(a), errors.Join(refused), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := Lasting(c.err, c.before); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// What is wrong with single entries is a problem of the objects that they come from.
func TestRefused(t *testing.T) {
	route := &EntryError{Entry: "add route 10.1.2.0/24", Origin: "HostSubnet node2", Err: errors.New("another's is in the way")}
	pod := &EndpointError{Interface: "wefta", Name: "default/a", Origin: "Pod default/a", Err: ErrMissing}
	nobodys, kernel := &EntryError{Entry: "add route 10.9.0.0/16", Err: errors.New("no way")}, errors.New("no buffer space")
	refused, rest := Refused(fmt.Errorf("apply: %w", errors.Join(route, kernel, pod, nobodys)))
	var got []string
	for _, r := range refused {
		got = append(got, r.Origin+": "+r.Message)
	}
	want := []string{"HostSubnet node2: " + route.Error(), "Pod default/a: " + pod.Error()}
	if !slices.Equal(got, want) {
		t.Errorf("of objects it says %q, and not %q", got, want)
	}
	if rest == nil || !errors.Is(rest, kernel) {
		t.Errorf("the rest is %v", rest)
	}
	if refused, rest := Refused(errors.Join(route, pod)); len(refused) != 2 || rest != nil {
		t.Errorf("where nothing is left it returns %v and %v", refused, rest)
	}
}
