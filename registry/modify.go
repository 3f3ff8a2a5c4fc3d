package registry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
)

// Modify changes an object by compare-and-swap: it reads the object, lets
// change alter it and writes it, again from the start when somebody else wrote
// in between. An error of change ends it and nothing is written. Nothing is
// written either when change altered nothing and no option is given. It
// returns the object as it is now stored.
//
// change may run several times and must not keep what it was given.
func Modify[T Object](ctx context.Context, r Registry, k *Kind, key Key, change func(T) error, opts ...WriteOption) (T, error) {
	for {
		o, conflict, err := modify(ctx, r, k, key, change, opts...)
		if !conflict || ctx.Err() != nil {
			return o, err
		}
	}
}

// ModifyOnce is Modify for who comes again anyway, later: where somebody else
// wrote in between it leaves the object as it is, with ErrConflict. Modify
// goes on for as long as somebody else is faster, without a pause.
func ModifyOnce[T Object](ctx context.Context, r Registry, k *Kind, key Key, change func(T) error, opts ...WriteOption) (T, error) {
	o, _, err := modify(ctx, r, k, key, change, opts...)
	return o, err
}

// modify reads an object, has it changed and writes it. conflict says that it
// failed as somebody else wrote in between.
func modify[T Object](ctx context.Context, r Registry, k *Kind, key Key, change func(T) error, opts ...WriteOption) (now T, conflict bool, err error) {
	var none T
	o, err := r.Get(ctx, k, key)
	if err != nil {
		return none, false, err
	}
	now, ok := o.(T)
	if !ok {
		return none, false, fmt.Errorf("%s %s: a %T, not a %T", k.Singular, key, o, none)
	}
	before := o.DeepCopyObject()
	if err := change(now); err != nil {
		return none, false, err
	}
	if len(opts) == 0 && reflect.DeepEqual(before, o) {
		return now, false, nil
	}
	if o, err = r.Update(ctx, k, now, opts...); err != nil {
		return none, errors.Is(err, ErrConflict), err
	}
	return o.(T), false, nil
}
