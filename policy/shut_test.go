package policy

import "testing"

// TestIsShut has the origin of each limit known as one, a limit that nobody has thought
// of yet too, and no other origin.
func TestIsShut(t *testing.T) {
	one := []*Policy{{Name: "NetworkPolicy a/large"}}
	for _, why := range []string{tooManyVerdicts, tooManyTogether, tooMuchWork, "are more than a limit to come"} {
		for _, policies := range [][]*Policy{one, append(one, &Policy{Name: "NetworkPolicy a/small"})} {
			if origin := shutOrigin(policies, why); !IsShut(origin) {
				t.Errorf("%q is taken for a rule", origin)
			}
		}
	}
	for _, origin := range []string{"", Unrestricted, "NetworkPolicy a/large", "NetworkPolicy a/large ingress[0]", "NetworkPolicy a/large ingress isolation",
		`ClusterNetworkPolicy a ingress[0] "a (its rules b)"`, "NetworkPolicy a/large and others of the same pod are large, and not worked out for a new peer yet"} {
		if IsShut(origin) {
			t.Errorf("%q is taken for a limit", origin)
		}
	}
}
