package policy

import (
	"fmt"
	"strings"
)

// What sets do that cost too much.
var (
	tooManyVerdicts = fmt.Sprintf("make more than %d verdicts", MaxVerdicts)
	tooManyTogether = fmt.Sprintf("make more than %d verdicts together with the other policies of the namespace", MaxVerdictsOfNamespace)
	tooMuchWork     = fmt.Sprintf("take more than %d comparisons to work out", MaxWork)
)

// What stands before and after the reason in the origin of what a set denies for what
// it costs. No origin of a rule has both: a rule's own name is quoted at its end.
const (
	shutOne     = " (its rules "
	shutSeveral = " and others of the same pod (their rules "
	shutEnd     = ")"
)

// shutOrigin is the origin of what a set denies for what it costs, where why is what
// its policies do beyond the limit.
func shutOrigin(policies []*Policy, why string) string {
	begin := shutOne
	if len(policies) > 1 {
		begin = shutSeveral
	}
	return policies[0].Name + begin + why + shutEnd
}

// IsShut reports whether a verdict's origin says that the policies of a pod deny
// everything because of what they would cost (Costly).
func IsShut(origin string) bool {
	return strings.HasSuffix(origin, shutEnd) && (strings.Contains(origin, shutOne) || strings.Contains(origin, shutSeveral))
}
