package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
)

func parse(t interface{ Fatal(...any) }, s string) object {
	o, err := toObject([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestDifference(t *testing.T) {
	for _, c := range []struct{ what, stored, known, wanted, patch string }{
		{"nothing", `{"a":1}`, `{"a":1}`, `{"a":1}`, `{}`},
		{"a new field", `{"a":1}`, `{"a":1}`, `{"a":1,"b":{"c":2}}`, `{"b":{"c":2}}`},
		{"a field gone", `{"a":1,"b":2}`, `{"a":1,"b":2}`, `{"a":1}`, `{"b":null}`},
		{"a key of a map gone", `{"m":{"a":"1","b":"2"}}`, `{"m":{"a":"1","b":"2"}}`, `{"m":{"a":"1"}}`, `{"m":{"b":null}}`},
		{"the last key that Weft sees gone", `{"m":{"a":"1","x":"9"}}`, `{"m":{"a":"1"}}`, `{}`, `{"m":{"a":null}}`},
		{"the last key of all gone", `{"m":{"a":"1"}}`, `{"m":{"a":"1"}}`, `{}`, `{"m":null}`},
		{"a new key beside one that Weft does not see", `{"m":{"x":"9"}}`, `{}`, `{"m":{"a":"1"}}`, `{"m":{"a":"1"}}`},
		{"null is nothing", `{"a":null}`, `{}`, `{"a":null}`, `{}`},
		{"a field of another type", `{"a":{"b":1}}`, `{"a":{"b":1}}`, `{"a":"b"}`, `{"a":"b"}`},
		{"a longer list", `{"l":[1,2]}`, `{"l":[1,2]}`, `{"l":[1,2,3]}`, `{"l":[1,2,3]}`},
		{"an empty list", `{"l":[1,2]}`, `{"l":[1,2]}`, `{"l":[]}`, `{"l":[]}`},
		{"a list gone", `{"l":[1,2]}`, `{"l":[1,2]}`, `{}`, `{"l":null}`},
		{"an item changed keeps what Weft does not see",
			`{"l":[{"type":"A","s":"no","x":9},{"type":"B","s":"no","x":8}]}`,
			`{"l":[{"type":"A","s":"no"},{"type":"B","s":"no"}]}`,
			`{"l":[{"type":"B","s":"yes"},{"type":"A","s":"no"},{"type":"C"}]}`,
			`{"l":[{"s":"yes","type":"B","x":8},{"s":"no","type":"A","x":9},{"type":"C"}]}`},
		{"an item gone", `{"l":[{"name":"a","x":9},{"name":"b","x":8}]}`, `{"l":[{"name":"a"},{"name":"b"}]}`, `{"l":[{"name":"b"}]}`, `{"l":[{"name":"b","x":8}]}`},
		{"large numbers", `{"l":[{"name":"a","x":9007199254740993}]}`, `{"l":[{"name":"a"}]}`, `{"l":[{"name":"a","v":1}]}`, `{"l":[{"name":"a","v":1,"x":9007199254740993}]}`},
	} {
		patch, err := difference(parse(t, c.stored), parse(t, c.known), parse(t, c.wanted))
		if err != nil || text(patch) != c.patch {
			t.Errorf("%s: %s, %v, want %s", c.what, text(patch), err, c.patch)
		}
	}
}

// A list of which Weft does not see all cannot be said to be as Weft wants it.
func TestListThatIsNotAllSeen(t *testing.T) {
	_, err := difference(parse(t, `{"s":{"l":[1,2,3]}}`), parse(t, `{"s":{"l":[1]}}`), parse(t, `{"s":{"l":[1,4]}}`))
	if err == nil || !strings.HasPrefix(err.Error(), "s: l: ") {
		t.Errorf("%v: want an error that names the field", err)
	}
}

// value draws a JSON value without nulls, whose names begin as given.
func value(prefix string, depth int) *rapid.Generator[any] {
	leaf := rapid.Custom(func(t *rapid.T) any { return rapid.SampledFrom([]string{"u", "v", "w"}).Draw(t, "leaf") })
	if depth == 0 {
		return leaf
	}
	return rapid.OneOf(leaf, rapid.Custom(func(t *rapid.T) any { return fields(prefix, depth-1).Draw(t, "object") }),
		rapid.Custom(func(t *rapid.T) any {
			return rapid.SliceOfN(leaf, 0, 3).Draw(t, "list")
		}))
}

func fields(prefix string, depth int) *rapid.Generator[object] {
	return rapid.Custom(func(t *rapid.T) object {
		o := object{}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID[string]).Draw(t, "names") {
			o[prefix+name] = value(prefix, depth).Draw(t, name)
		}
		return o
	})
}

// overlay adds to an object, in each object within it, what others wrote.
func overlay(t *rapid.T, o object) object {
	out := object{}
	for name, v := range o {
		if inner, ok := v.(object); ok {
			v = overlay(t, inner)
		}
		out[name] = v
	}
	maps.Copy(out, fields("x", 1).Draw(t, "others'"))
	return out
}

// seen reduces an object to what does not begin with x.
func seen(o object, theirs bool) object {
	out := object{}
	for name, v := range o {
		if strings.HasPrefix(name, "x") {
			if theirs {
				out[name] = v
			}
			continue
		}
		if inner, ok := v.(object); ok {
			v = seen(inner, theirs)
			if theirs && len(v.(object)) == 0 {
				continue
			}
		} else if theirs {
			continue
		}
		out[name] = v
	}
	return out
}

// equal compares objects in which an empty object is as none: Go types do not
// tell them apart where Weft removes the last of what it sees.
func equal(a, b object) bool {
	var prune func(object) object
	prune = func(o object) object {
		out := object{}
		for name, v := range o {
			if inner, ok := v.(object); ok {
				if inner = prune(inner); len(inner) == 0 {
					continue
				}
				v = inner
			}
			out[name] = v
		}
		return out
	}
	return reflect.DeepEqual(prune(a), prune(b))
}

func TestDifferenceMakesWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		known, wanted := fields("", 3).Draw(t, "known"), fields("", 3).Draw(t, "wanted")
		stored := overlay(t, known)
		patch, err := difference(stored, known, wanted)
		if err != nil {
			t.Fatal(err)
		}
		if reflect.DeepEqual(known, wanted) != (len(patch) == 0) {
			t.Fatalf("the patch from %s to %s is %s", text(known), text(wanted), text(patch))
		}
		after := apply(stored, patch)
		if got := seen(after, false); !equal(got, wanted) {
			t.Fatalf("stored %s, patch %s: Weft sees %s, want %s", text(stored), text(patch), text(got), text(wanted))
		}
		// What others wrote stays, unless Weft made a text or a list of the
		// object that it was in.
		for name := range stored {
			if strings.HasPrefix(name, "x") && !reflect.DeepEqual(after[name], stored[name]) {
				t.Fatalf("%s was %s and is %s", name, text(stored[name]), text(after[name]))
			}
			before, wasObject := stored[name].(object)
			now, isObject := after[name].(object)
			if _, replaced := wanted[name]; wasObject && (isObject || !replaced) {
				if theirs := seen(before, true); !contains(now, theirs, wanted[name]) {
					t.Fatalf("%s: others had %s, now there is %s", name, text(theirs), text(now))
				}
			}
		}
	})
}

// contains says whether an object has all of another, but where wanted has
// something that is no object.
func contains(o, all object, wanted any) bool {
	w, _ := wanted.(object)
	for name, v := range all {
		inner, isObject := v.(object)
		if !isObject || strings.HasPrefix(name, "x") {
			if !reflect.DeepEqual(o[name], v) {
				return false
			}
			continue
		}
		if replacement, ok := w[name]; ok {
			if _, ok := replacement.(object); !ok {
				continue
			}
		}
		if now, _ := o[name].(object); !contains(now, inner, w[name]) {
			return false
		}
	}
	return true
}

// A node's condition, as an agent sets it, touches nothing but that.
func TestUpdateOfANode(t *testing.T) {
	stored := `{"apiVersion":"v1","kind":"Node",
		"metadata":{"name":"n","uid":"u","resourceVersion":"7","managedFields":[{"manager":"kubelet"}],
			"labels":{"a":"1"},"annotations":{"theirs":"1","ours":"1"}},
		"spec":{"podCIDR":"10.244.0.0/24","taints":[{"key":"k","effect":"NoSchedule"}],"unheard-of":true},
		"status":{"capacity":{"cpu":"2"},"nodeInfo":{"machineID":"m"},
			"conditions":[{"type":"Ready","status":"True","unheard-of":1},{"type":"NetworkUnavailable","status":"True","unheard-of":2}]}}`
	known := api.Node.New()
	if err := json.Unmarshal([]byte(stored), known); err != nil {
		t.Fatal(err)
	}
	api.Node.Keep(known)
	wanted := known.DeepCopyObject().(*corev1.Node)
	wanted.Status.Conditions[1].Status = corev1.ConditionFalse
	patch, err := update([]byte(stored), known, wanted)
	if err != nil {
		t.Fatal(err)
	}
	delete(wanted.Annotations, "ours")
	wanted.UID, wanted.ResourceVersion = "", "6" // the API server's
	both, err := update([]byte(stored), known, wanted)
	if err != nil {
		t.Fatal(err)
	}
	status := `"status":{"conditions":[{"status":"True","type":"Ready","unheard-of":1},{"status":"False","type":"NetworkUnavailable","unheard-of":2}]}`
	if got, want := text(patch), `{`+status+`}`; got != want {
		t.Errorf("the patch is\n%s, want\n%s", got, want)
	}
	if got, want := text(ifVersion("7", both)), fmt.Sprintf(`{"metadata":{"annotations":{"ours":null},"resourceVersion":"7"},%s}`, status); got != want {
		t.Errorf("the patch is\n%s, want\n%s", got, want)
	}
}
