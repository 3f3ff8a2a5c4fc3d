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

// MaxAnswered is for how many addresses a node answers at most.
const MaxAnswered = 4096

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
// What does not parse is left out, and so are more where that cannot be so, as AnnouncesWrong says.
func Announces(n *corev1.Node) (addresses []netip.Addr, more bool) {
	addresses, count, _ := readAnnounces(n)
	return addresses, count > 0
}

// AnnouncedCount returns for how many addresses a Node says that it answers, those among them that
// it does not name.
func AnnouncedCount(n *corev1.Node) int {
	addresses, more, _ := readAnnounces(n)
	return len(addresses) + more
}

// AnnouncesWrong returns what of that annotation no agent writes, "" for nothing: by addresses that it does not name a Node
// could hide that nobody answers for others.
func AnnouncesWrong(n *corev1.Node) string {
	_, _, wrong := readAnnounces(n)
	return wrong
}

// readAnnounces returns the addresses that a Node names, each once, how many more it says that it answers for, and why that is
// not believed.
func readAnnounces(n *corev1.Node) (addresses []netip.Addr, more int, wrong string) {
	seen := make(map[netip.Addr]bool)
	for text := range strings.SplitSeq(n.Annotations[AnnouncesAnnotation], ",") {
		if count, is := strings.CutPrefix(text, "+"); is {
			more, err := strconv.ParseUint(count, 10, 16)
			switch {
			case err != nil || more == 0 || more > MaxAnswered-MaxAnnounced:
				return addresses, 0, fmt.Sprintf("it says that it answers for %q addresses beside %d that it names, and a node has %d at most", text, len(addresses), MaxAnswered)
			case len(addresses) < MaxAnnounced:
				return addresses, 0, fmt.Sprintf("it says that it answers for %q addresses that it does not name, and names %d of %d that it can", text, len(addresses), MaxAnnounced)
			}
			return addresses, int(more), ""
		}
		if len(addresses) == MaxAnnounced {
			return addresses, 0, fmt.Sprintf("it names more than %d addresses", MaxAnnounced)
		}
		if a, err := netip.ParseAddr(text); err == nil && !seen[a] {
			addresses, seen[a] = append(addresses, a), true
		}
	}
	return addresses, 0, ""
}
