package registry

import (
	"errors"
	"fmt"
	"time"
)

// ErrNoVersion is what Update says of an object without a resource version.
var ErrNoVersion = errors.New("metadata.resourceVersion is empty: read the object, change it and write it back")

// KeepIdentity gives an object that is about to replace another the UID and
// creation time of that, where it has none. It is for implementations.
func KeepIdentity(o, before Object) {
	if o.GetUID() == "" {
		o.SetUID(before.GetUID())
	}
	if created := o.GetCreationTimestamp(); created.IsZero() {
		o.SetCreationTimestamp(before.GetCreationTimestamp())
	}
}

// CheckLease says what keeps a lease from being acquired: an empty name or
// holder, a ttl under a second. It is for implementations.
func CheckLease(name, holder string, ttl time.Duration) error {
	switch {
	case name == "":
		return fmt.Errorf("lease: %w: it has no name", ErrInvalid)
	case holder == "":
		return fmt.Errorf("lease %s: %w: no holder is named", name, ErrInvalid)
	case ttl < time.Second:
		return fmt.Errorf("lease %s: %w: the ttl %s is less than a second", name, ErrInvalid, ttl)
	}
	return nil
}
