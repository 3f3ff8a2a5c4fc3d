package api

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnouncesAnnotation says, on a Node, which addresses it answers for on its links, separated
// by commas; of more than MaxAnnounced it names the first, and says behind a "+" how many more
// there are.
const AnnouncesAnnotation = "weft.network/announces"

// MaxAnnounced is how many addresses that annotation names at most.
const MaxAnnounced = 256

// AnnouncesText is what that annotation says of addresses.
func AnnouncesText(addresses []netip.Addr) string {
	var b strings.Builder
	for i, a := range addresses[:min(len(addresses), MaxAnnounced)] {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(a.String())
	}
	if more := len(addresses) - MaxAnnounced; more > 0 {
		fmt.Fprintf(&b, ",+%d", more)
	}
	return b.String()
}

// SetAnnounces has a Node say what it answers for, in the form of AnnouncesText, and reports
// whether that changed anything.
func SetAnnounces(n *corev1.Node, text string) (changed bool) {
	before, said := n.Annotations[AnnouncesAnnotation]
	switch {
	case text == "" && said:
		delete(n.Annotations, AnnouncesAnnotation)
	case text != "" && text != before:
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, AnnouncesAnnotation, text)
	default:
		return false
	}
	return true
}

// Announces returns the addresses that a Node says it answers for, and whether there are more.
// What does not parse is left out.
func Announces(n *corev1.Node) (addresses []netip.Addr, more bool) {
	for text := range strings.SplitSeq(n.Annotations[AnnouncesAnnotation], ",") {
		if len(addresses) == MaxAnnounced || strings.HasPrefix(text, "+") {
			return addresses, true
		}
		if a, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, a)
		}
	}
	return addresses, false
}

// AnnouncedCount returns for how many addresses a Node says that it answers, those among them that
// it does not name.
func AnnouncedCount(n *corev1.Node) int {
	addresses, _ := Announces(n)
	_, text, _ := strings.Cut(n.Annotations[AnnouncesAnnotation], ",+")
	more, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		more = 0
	}
	return len(addresses) + int(more)
}
