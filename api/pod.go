package api

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The annotations by which a pod asks for a bandwidth, in bit/s as a quantity:
// "10M". Container runtimes hand them to the CNI plug-in that says it limits bandwidth.
const (
	IngressBandwidth = "kubernetes.io/ingress-bandwidth"
	EgressBandwidth  = "kubernetes.io/egress-bandwidth"
)

// The least and the greatest bandwidth that Kubernetes takes, in bit/s.
const (
	MinBandwidth = 1_000
	MaxBandwidth = 1_000_000_000_000_000
)

// domain begins the names of Weft's own annotations.
const domain = "weft.network/"

// PodSettings is what a pod asks of its network by annotations.
type PodSettings struct {
	// Ingress and Egress are the bandwidths to and from the pod in bit/s, from
	// 1,000 to 10^15; 0 is no limit.
	Ingress, Egress int64
}

// Ended reports whether a pod's containers have ended for good: it has no
// network any more, and its addresses are the next one's.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// podAnnotations are those that concern a pod's network, each with what reads
// its value.
var podAnnotations = map[string]func(value string, s *PodSettings) error{
	IngressBandwidth: func(v string, s *PodSettings) (err error) { s.Ingress, err = parseBandwidth(v); return err },
	EgressBandwidth:  func(v string, s *PodSettings) (err error) { s.Egress, err = parseBandwidth(v); return err },
}

// quantity is the form of quantities that are worth reading: of 1e20000000,
// resource.ParseQuantity makes a number of twenty million digits.
var quantity = regexp.MustCompile(`^[+-]?[0-9.]{1,18}([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

func parseBandwidth(value string) (int64, error) {
	malformed := errors.New("must be a quantity of bit/s such as 10M")
	if !quantity.MatchString(value) {
		return 0, malformed
	}
	q, err := resource.ParseQuantity(value)
	if err != nil {
		return 0, malformed
	}
	if q.CmpInt64(MinBandwidth) < 0 || q.CmpInt64(MaxBandwidth) > 0 {
		return 0, errors.New("must be between 1k and 1P bit/s")
	}
	return q.Value(), nil
}

// PodNetwork reads the annotations that concern a pod's network. Its error
// names each that has a value it cannot have, and each of Weft's domain that is
// not one of a pod's.
func PodNetwork(p *corev1.Pod) (PodSettings, error) {
	var s PodSettings
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(p.Annotations)) {
		read, known := podAnnotations[name]
		switch {
		case known:
			if err := read(p.Annotations[name], &s); err != nil {
				wrong = append(wrong, fmt.Sprintf("annotation %s=%q: %v", name, shorten(p.Annotations[name]), err))
			}
		case strings.HasPrefix(name, domain):
			wrong = append(wrong, fmt.Sprintf("annotation %s: this version of Weft knows no such annotation of a pod; remove it", name))
		}
	}
	if len(wrong) > 0 {
		return PodSettings{}, errors.New(strings.Join(wrong, "; "))
	}
	return s, nil
}

// shorten bounds what a message repeats of a value, in bytes.
func shorten(value string) string {
	const most = 64
	if len(value) <= most {
		return value
	}
	return strings.ToValidUTF8(value[:most], "") + "…"
}

// IsPod says whether p is the pod that a container runtime knows by a UID. The
// object that stands for a static pod has a UID of its own, and names that
// which the kubelet gave the pod. An empty uid is that of any pod.
func IsPod(p *corev1.Pod, uid string) bool {
	return uid == "" || string(p.UID) == uid || p.Annotations[corev1.MirrorPodAnnotationKey] == uid
}
