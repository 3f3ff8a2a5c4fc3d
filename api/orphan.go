package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/internal/printable"
)

// OrphansAnnotation holds, on a Node, the pods that still have an interface there
// though there is no object of them, as Orphans in JSON. Such a pod still sends and
// receives; no object says so.
const OrphansAnnotation = "weft.network/orphans"

// MaxOrphans is how many such pods an agent names. Of one that names more no more are
// read.
const MaxOrphans = 20

// Orphans are the pods of a node that have an interface and no object.
type Orphans struct {
	// Pods are the first MaxOrphans of them, in the order of their names.
	Pods []Orphan `json:"pods,omitempty"`
	// More is how many others there are, from 0 to a number that no node has.
	More int `json:"more,omitempty"`
}

// Orphan is a pod without an object.
type Orphan struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the one that the runtime gave, in 253 bytes at most, empty where it gave
	// none. An object of the same name and another UID is of another pod.
	UID string `json:"uid,omitempty"`
	// Addresses are those of its interface: one, or one of each family. No two pods of a
	// node have one.
	Addresses []string `json:"addresses"`
}

// String is the pod's name, as "default/web".
func (o Orphan) String() string { return o.Namespace + "/" + o.Name }

// Text is the annotation's value, empty where there are none. It names no more than
// MaxOrphans, and counts the others.
func (o Orphans) Text() string {
	if len(o.Pods) > MaxOrphans {
		o.More += len(o.Pods) - MaxOrphans
		o.Pods = o.Pods[:MaxOrphans]
	}
	if len(o.Pods)+o.More == 0 {
		return ""
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and a number alone
	}
	return string(text)
}

// What an agent may say of pods without objects.
const (
	// maxMoreOrphans is more than a node has interfaces, and so little that no sum of
	// it and of those that are named is too large for an int.
	maxMoreOrphans = 1 << 30
	// maxUID is how many bytes a UID may have, as many as a name.
	maxUID = 253
)

// orphanName is the form of the names of a pod and of its namespace that a runtime may
// give an agent (RFC 1123).
var orphanName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// NodeOrphans returns what a Node's agent said of pods without objects. It fails where
// that cannot be read, or where a part of it is nothing that an agent of Weft's says:
// of one that somebody else has got hold of, nothing else is to be believed either.
func NodeOrphans(node *corev1.Node) (Orphans, error) {
	var o Orphans
	text := node.Annotations[OrphansAnnotation]
	if text == "" {
		return o, nil
	}
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return Orphans{}, fmt.Errorf("annotation %s of Node %s cannot be read: %s", OrphansAnnotation, node.Name, printable.Brief(err.Error()))
	}
	if more := len(o.Pods) - MaxOrphans; more > 0 {
		o.Pods, o.More = o.Pods[:MaxOrphans], o.More+more
	}
	return o, nil
}

// check says what of it no agent says, as far as it is read.
func (o Orphans) check() error {
	if o.More < 0 || o.More > maxMoreOrphans {
		return fmt.Errorf("more is %d, not a number from 0 to %d", o.More, maxMoreOrphans)
	}
	of := make(map[netip.Addr]int)
	for i, pod := range o.Pods[:min(len(o.Pods), MaxOrphans)] {
		addresses, err := pod.check()
		if err != nil {
			return fmt.Errorf("pods[%d]: %w", i, err)
		}
		for n, a := range addresses {
			if other, taken := of[a]; taken {
				return fmt.Errorf("pods[%d]: %q is the address of pods[%d], too", i, pod.Addresses[n], other)
			}
			of[a] = i
		}
	}
	return nil
}

// check returns the pod's addresses, or says what of it no agent says.
func (o Orphan) check() ([]netip.Addr, error) {
	switch {
	case !orphanName.MatchString(o.Namespace):
		return nil, fmt.Errorf("namespace %q is no such name in Kubernetes", shorten(o.Namespace))
	case !orphanName.MatchString(o.Name):
		return nil, fmt.Errorf("name %q is no such name in Kubernetes", shorten(o.Name))
	case len(o.UID) > maxUID:
		return nil, fmt.Errorf("its uid has %d bytes, more than %d", len(o.UID), maxUID)
	case len(o.Addresses) == 0:
		return nil, errors.New("it has no address")
	}
	var addresses []netip.Addr
	for _, text := range o.Addresses {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, fmt.Errorf("%q is no address of a pod", shorten(text))
		}
		if slices.ContainsFunc(addresses, func(other netip.Addr) bool { return other.Is4() == a.Is4() }) {
			return nil, fmt.Errorf("%q is a second address of its family", shorten(text))
		}
		addresses = append(addresses, a)
	}
	return addresses, nil
}
