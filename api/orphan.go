package api

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
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
	// More is how many others there are.
	More int `json:"more,omitempty"`
}

// Orphan is a pod without an object.
type Orphan struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the one that the runtime gave, empty where it gave none. An object of
	// the same name and another UID is of another pod.
	UID string `json:"uid,omitempty"`
	// Addresses are those of its interface, at most one of each family.
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

// NodeOrphans returns what a Node's agent said of pods without objects. It fails where
// that cannot be read.
func NodeOrphans(node *corev1.Node) (Orphans, error) {
	var o Orphans
	text := node.Annotations[OrphansAnnotation]
	if text == "" {
		return o, nil
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return Orphans{}, fmt.Errorf("annotation %s of Node %s cannot be read: %w", OrphansAnnotation, node.Name, err)
	}
	if more := len(o.Pods) - MaxOrphans; more > 0 {
		o.Pods, o.More = o.Pods[:MaxOrphans], max(o.More, 0)+more
	}
	return o, nil
}
