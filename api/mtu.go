package api

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// MTUAnnotation holds, on a Node, the MTU of its pods' interfaces, in bytes and
// decimal, that is in the last plan which the node did wholly. Nodes do not take each
// other's, so that what is too large for another's pods is sent all the same.
const MTUAnnotation = "weft.network/mtu"

// The bounds of the MTU of pods' interfaces in bytes: what each host must take (RFC
// 791, section 3.1), and the largest packet. With IPv6 the least is 1280 (RFC 8200,
// section 5).
const (
	MinMTU = 576
	MaxMTU = 65535
)

// NodeMTU returns the MTU in bytes that a Node's agent told, 0 where it has not. It
// fails where that is none from MinMTU to MaxMTU.
func NodeMTU(node *corev1.Node) (int, error) {
	text := node.Annotations[MTUAnnotation]
	if text == "" {
		return 0, nil
	}
	mtu, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(mtu) != text || mtu < MinMTU || mtu > MaxMTU {
		return 0, fmt.Errorf("annotation %s of Node %s is %q, not a number of bytes from %d to %d", MTUAnnotation, node.Name, shorten(text), MinMTU, MaxMTU)
	}
	return mtu, nil
}
