package api

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// unknownField is where a decoder names a field that a kind does not have.
var unknownField = regexp.MustCompile(`^unknown field "([^"]+)"$`)

// suggest adds to an error of an unknown field how the field of that name is written,
// where it differs in upper and lower case alone. of is the type of the object.
func suggest(err error, of reflect.Type) error {
	m := unknownField.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	var path []string
	right := of
	words := strings.Split(m[1], ".")
	for i, word := range words {
		name, index, _ := strings.Cut(word, "[")
		field, found := fieldCalled(elementOf(right), name)
		if !found {
			return err
		}
		right = field.Type
		if tag := nameOf(field); i < len(words)-1 && index != "" {
			path = append(path, tag+"["+index)
		} else {
			path = append(path, tag)
		}
	}
	return fmt.Errorf("%w: write %q", err, strings.Join(path, "."))
}

// elementOf returns what pointers and lists lead to.
func elementOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

// fieldCalled returns the field of a struct that JSON calls so, in whatever case.
func fieldCalled(t reflect.Type, name string) (reflect.StructField, bool) {
	if t.Kind() != reflect.Struct {
		return reflect.StructField{}, false
	}
	for _, f := range reflect.VisibleFields(t) {
		if tag := nameOf(f); tag != "" && tag != "-" && strings.EqualFold(tag, name) {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// nameOf is what JSON calls a field, "" where it is what is in it that has names.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
