package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// object is a JSON object. Numbers in it are json.Number, so that those of
// others do not change.
type object = map[string]any

// toObject returns the JSON object of an API object or of its encoding,
// without nulls, which mean the same as nothing.
func toObject(o any) (object, error) {
	data, ok := o.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(o); err != nil {
			return nil, err
		}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var out object
	if err := d.Decode(&out); err != nil {
		return nil, err
	}
	dropNulls(out)
	return out, nil
}

func dropNulls(value any) {
	switch v := value.(type) {
	case object:
		maps.DeleteFunc(v, func(_ string, field any) bool { return field == nil })
		for _, field := range v {
			dropNulls(field)
		}
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	}
}

// writable reduces an object to what a client may write: of the metadata, the
// API server owns all else.
func writable(o object) object {
	out := maps.Clone(o)
	delete(out, "apiVersion")
	delete(out, "kind")
	delete(out, "metadata")
	if all, ok := o["metadata"].(object); ok {
		meta := object{}
		for _, name := range []string{"labels", "annotations", "finalizers", "ownerReferences"} {
			if value, ok := all[name]; ok {
				meta[name] = value
			}
		}
		out["metadata"] = meta
	}
	return out
}

// difference returns the JSON merge patch (RFC 7386) that makes of stored what
// differs between two views of it: known, which is all that Weft sees of
// stored, and wanted, which is to be all that it sees. What Weft does not see
// stays as it is, in the items of lists, too. It fails where that cannot be:
// where a list changes of which Weft does not see all items.
func difference(stored, known, wanted object) (object, error) {
	patch := object{}
	for name, before := range known {
		if _, ok := wanted[name]; ok {
			continue
		}
		patch[name] = nil
		before, isObject := before.(object)
		rest, stays := stored[name].(object)
		if !isObject || !stays {
			continue
		}
		inner, err := difference(rest, before, object{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(apply(rest, inner)) > 0 { // something is left, which Weft does not know
			patch[name] = inner
		}
	}
	for name, after := range wanted {
		before, seen := known[name]
		if seen && reflect.DeepEqual(before, after) {
			continue
		}
		change, err := change(stored[name], before, after)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		patch[name] = change
	}
	return patch, nil
}

// change returns what a merge patch says to make a value what is wanted.
func change(stored, known, wanted any) (any, error) {
	switch wanted := wanted.(type) {
	case object:
		if known, ok := known.(object); ok {
			rest, _ := stored.(object)
			return difference(rest, known, wanted)
		}
	case []any:
		known, _ := known.([]any)
		all, _ := stored.([]any)
		if len(all) != len(known) {
			return nil, fmt.Errorf("the list has items that Weft does not keep, and so cannot be changed")
		}
		return items(all, known, wanted)
	}
	return wanted, nil
}

// items returns the list that is wanted, whose items keep what Weft does not
// see of those that they were before.
func items(stored, known, wanted []any) ([]any, error) {
	used := make([]bool, len(known))
	find := func(matches func(any) bool) int {
		for i, item := range known {
			if !used[i] && matches(item) {
				used[i] = true
				return i
			}
		}
		return -1
	}
	out := slices.Clone(wanted)
	same := make([]int, len(wanted))
	for n, item := range wanted {
		if same[n] = find(func(before any) bool { return reflect.DeepEqual(before, item) }); same[n] >= 0 {
			out[n] = stored[same[n]]
		}
	}
	for n, item := range wanted {
		after, isObject := item.(object)
		if same[n] >= 0 || !isObject {
			continue
		}
		i := find(func(before any) bool { return sameItem(before, after) })
		if i < 0 {
			continue
		}
		rest, isObject := stored[i].(object)
		if !isObject {
			continue
		}
		patch, err := difference(rest, known[i].(object), after)
		if err != nil {
			return nil, err
		}
		out[n] = apply(rest, patch)
	}
	return out, nil
}

// sameItem says whether an item of a list is a later state of another:
// Kubernetes' lists of objects have one of these fields for a key.
func sameItem(before any, after object) bool {
	b, ok := before.(object)
	if !ok {
		return false
	}
	for _, key := range []string{"uid", "type", "name", "key", "ip"} {
		if value, ok := after[key]; ok {
			return reflect.DeepEqual(b[key], value)
		}
	}
	return false
}

// ifVersion returns a patch that the API server refuses for an object of another
// resource version.
func ifVersion(version string, patch object) object {
	old, _ := patch["metadata"].(object)
	meta := object{"resourceVersion": version}
	maps.Copy(meta, old)
	out := maps.Clone(patch)
	out["metadata"] = meta
	return out
}

// apply returns what a JSON merge patch makes of an object.
func apply(o, patch object) object {
	out := maps.Clone(o)
	if out == nil {
		out = object{}
	}
	for name, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(out, name)
		case object:
			inner, _ := out[name].(object)
			out[name] = apply(inner, value)
		default:
			out[name] = value
		}
	}
	return out
}
