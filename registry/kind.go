package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

// Compare orders keys by namespace, then name. It is the order of List.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name))
}

// Errorf returns an error that wraps one of the package's errors and names the
// object; detail, which may be nil, says more. It is for implementations.
func (k *Kind) Errorf(key Key, err, detail error) error {
	if detail == nil {
		return fmt.Errorf("%s %s: %w", k.Singular, key, err)
	}
	return fmt.Errorf("%s %s: %w: %w", k.Singular, key, err, detail)
}

// Admit returns the copy of an object that a registry may store, or
// ErrInvalid: where it is not of this kind, where its name or namespace cannot
// be, where Validate refuses it, or where the options cannot be. It is for
// implementations, which call it before each write of an object that is new.
func (k *Kind) Admit(o Object, opts ...WriteOption) (Object, WriteOptions, error) {
	return k.admit(o, opts, func(refused error) error { return k.Errorf(KeyOf(o), ErrInvalid, refused) })
}

// AdmitUpdate is Admit for an object that is to take the place of another one, which before
// reads where that has to be known. What was stored before there was a rule that it breaks may
// still say in its status what is wrong with it: what Validate refuses is admitted if it is what
// is stored but for the status, and is refused with the same words.
func (k *Kind) AdmitUpdate(o Object, before func() (Object, error), opts ...WriteOption) (Object, WriteOptions, error) {
	return k.admit(o, opts, func(refused error) error {
		stored, err := before()
		if err != nil {
			return err
		}
		wrong := k.Validate(stored)
		switch {
		case wrong == nil, !slices.Equal(reasons(wrong), reasons(refused)):
			return k.Errorf(KeyOf(o), ErrInvalid, refused)
		case stored.GetResourceVersion() != o.GetResourceVersion():
			return k.Errorf(KeyOf(o), ErrConflict, nil)
		}
		o := o.DeepCopyObject().(Object)
		KeepIdentity(o, stored)
		was, err := withoutStatus(stored)
		if err != nil {
			return k.Errorf(KeyOf(o), ErrInvalid, err)
		}
		if is, err := withoutStatus(o); err != nil || !reflect.DeepEqual(was, is) {
			return k.Errorf(KeyOf(o), ErrInvalid, refused)
		}
		return nil
	})
}

// admit has the last word of an object that Validate refuses said by again.
func (k *Kind) admit(o Object, opts []WriteOption, again func(refused error) error) (Object, WriteOptions, error) {
	var options WriteOptions
	for _, set := range opts {
		set(&options)
	}
	if o == nil || reflect.TypeOf(o) != reflect.TypeOf(k.New()) || reflect.ValueOf(o).IsNil() {
		return nil, options, fmt.Errorf("%s: %w: a %T was given", k.Singular, ErrInvalid, o)
	}
	key := KeyOf(o)
	if gvk := o.GetObjectKind().GroupVersionKind(); !gvk.Empty() && gvk != k.GroupVersionKind {
		return nil, options, k.Errorf(key, ErrInvalid, fmt.Errorf("it says that it is a %s", gvk))
	}
	if err := k.checkKey(key); err != nil {
		return nil, options, k.Errorf(key, ErrInvalid, err)
	}
	if options.TTL != 0 && options.TTL < time.Second {
		return nil, options, k.Errorf(key, ErrInvalid, fmt.Errorf("the time to live %s is less than a second", options.TTL))
	}
	if k.Validate != nil {
		if refused := k.Validate(o); refused != nil {
			if err := again(refused); err != nil {
				return nil, options, err
			}
		}
	}
	o = o.DeepCopyObject().(Object)
	o.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return o, options, nil
}

// reasons are the single errors of one that Validate returned, in order: it may come upon them in any.
func reasons(err error) (texts []string) {
	all := []error{err}
	if several, ok := err.(interface{ Errors() []error }); ok {
		all = several.Errors()
	}
	for _, e := range all {
		texts = append(texts, e.Error())
	}
	slices.Sort(texts)
	return texts
}

// withoutStatus returns what an object says beside its status, and beside of what kind it is.
func withoutStatus(o Object) (map[string]any, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	for _, f := range []string{"apiVersion", "kind", "status"} {
		delete(fields, f)
	}
	return fields, nil
}

// checkKey says what keeps an object from being stored under a key.
func (k *Kind) checkKey(key Key) error {
	if k.Layout != nil && k.Layout.Name != "" && key.Name != k.Layout.Name {
		return fmt.Errorf("the only %s is called %q", k.Singular, k.Layout.Name)
	}
	if err := checkSegment("metadata.name", key.Name); err != nil {
		return err
	}
	if !k.Namespaced {
		if key.Namespace != "" {
			return fmt.Errorf("metadata.namespace is %q, but a %s has none", key.Namespace, k.Singular)
		}
		return nil
	}
	return checkSegment("metadata.namespace", key.Namespace)
}

func checkSegment(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s is empty", field)
	}
	if problems := content.IsPathSegmentName(value); len(problems) > 0 {
		return fmt.Errorf("%s %q: %s", field, value, strings.Join(problems, ", "))
	}
	return nil
}

// Prefix is what all paths of the kind start with in a key-value registry
// whose own paths start with root: root + "/network.openshift.io/hostsubnets/",
// with "core" for the group that has no name, or what the kind's Layout says.
func (k *Kind) Prefix(root string) string {
	if k.Layout != nil && k.Layout.Prefix != "" {
		return k.Layout.Prefix
	}
	return root + "/" + cmp.Or(k.Group, "core") + "/" + k.Plural + "/"
}

// Path is where a key-value registry keeps an object: Prefix followed by
// "name" or "namespace/name". ok is false where the kind cannot have such a key.
func (k *Kind) Path(root string, key Key) (path string, ok bool) {
	switch {
	case k.checkKey(key) != nil:
		return "", false
	case k.Single():
		return k.Layout.Prefix, true
	case k.Namespaced:
		return k.Prefix(root) + key.Namespace + "/" + key.Name, true
	default:
		return k.Prefix(root) + key.Name, true
	}
}

// KeyAt is the inverse of Path.
func (k *Kind) KeyAt(root, path string) (key Key, ok bool) {
	name, found := strings.CutPrefix(path, k.Prefix(root))
	switch {
	case !found:
		return Key{}, false
	case k.Single():
		return Key{Name: k.Layout.Name}, name == ""
	}
	key.Name = name
	if k.Namespaced {
		key.Namespace, key.Name, _ = strings.Cut(name, "/")
	}
	return key, k.checkKey(key) == nil
}

// Single says that there is one object of the kind at most, at Layout.Prefix.
func (k *Kind) Single() bool { return k.Layout != nil && k.Layout.Name != "" }

// Encode returns the value that a key-value registry stores for an object:
// JSON without the resource version, or what the kind's Layout says.
func (k *Kind) Encode(o Object) ([]byte, error) {
	o = o.DeepCopyObject().(Object)
	o.SetResourceVersion("")
	encode := func(o Object) ([]byte, error) { return json.Marshal(o) }
	if k.Layout != nil && k.Layout.Encode != nil {
		encode = k.Layout.Encode
	}
	value, err := encode(o)
	if err != nil {
		return nil, k.Errorf(KeyOf(o), ErrInvalid, err)
	}
	return value, nil
}

// Decode is the inverse of Encode. Name, namespace and resource version come
// from where the value was found.
func (k *Kind) Decode(key Key, value []byte, stored Stored, resourceVersion string) (Object, error) {
	o, err := k.decode(key, value, stored)
	if err != nil {
		return nil, k.Errorf(key, ErrInvalid, fmt.Errorf("the stored value: %w", err))
	}
	o.SetName(key.Name)
	o.SetNamespace(key.Namespace)
	o.SetResourceVersion(resourceVersion)
	o.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return o, nil
}

func (k *Kind) decode(key Key, value []byte, stored Stored) (Object, error) {
	if k.Layout != nil && k.Layout.Decode != nil {
		return k.Layout.Decode(key.Name, value, stored)
	}
	o := k.New()
	if err := kjson.Unmarshal(value, o); err != nil {
		return nil, err
	}
	gvk := o.GetObjectKind().GroupVersionKind()
	if gvk.Empty() {
		return nil, errors.New("it has no kind")
	}
	if gvk != k.GroupVersionKind {
		return nil, fmt.Errorf("it is a %s", gvk)
	}
	return o, nil
}
