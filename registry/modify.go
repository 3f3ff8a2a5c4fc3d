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
	var none T
	for {
		o, err := r.Get(ctx, k, key)
		if err != nil {
			return none, err
		}
		now, ok := o.(T)
		if !ok {
			return none, fmt.Errorf("%s %s: a %T, not a %T", k.Singular, key, o, none)
		}
		before := o.DeepCopyObject()
		if err := change(now); err != nil {
			return none, err
		}
		if len(opts) == 0 && reflect.DeepEqual(before, o) {
			return now, nil
		}
		o, err = r.Update(ctx, k, now, opts...)
		if errors.Is(err, ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return none, err
		}
		return o.(T), nil
	}
}
