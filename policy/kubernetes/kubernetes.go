// Package kubernetes translates Kubernetes' own policies, NetworkPolicy and
// ClusterNetworkPolicy, into those of package policy, and says what policies can
// see of a pod. It consists of pure functions.
//
// API servers and package api refuse what is not valid. What slipped past them,
// as an object does that is older than the rule, or newer than this code, fails
// closed: a rule that allows matches nothing then, one that denies or passes
// denies all that it might mean, and a policy whose subject is not understood is
// about all pods that it might select. None of that is silent.
package kubernetes

import (
	"errors"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
)

// nobody are the peers of a rule that matches nothing. It is not the empty list,
// which is so easily taken for that of all peers.
var nobody = []policy.Peer{{}}

// faults are what could not be understood, each with the field's path.
type faults []string

func (f *faults) add(path *field.Path, format string, args ...any) {
	*f = append(*f, path.String()+": "+fmt.Sprintf(format, args...))
}

// so returns the faults as problems, each with what follows from it.
func (f faults) so(consequence string) []string {
	problems := make([]string, len(f))
	for i, fault := range f {
		problems[i] = fault + ": " + consequence
	}
	return problems
}

// selector returns nil for a selector of everything and for one that is no
// selector.
func (f *faults) selector(path *field.Path, s *metav1.LabelSelector) labels.Selector {
	if s == nil || len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		f.add(path, "%v", err)
		return nil
	}
	return selector
}

// prefix returns the prefix that a CIDR means; its host bits, which policies
// from before Kubernetes refused them may have set, mean nothing.
func (f *faults) prefix(path *field.Path, cidr string) netip.Prefix {
	p, err := netip.ParsePrefix(cidr)
	if err != nil || p.Addr().Is4In6() {
		f.add(path, "%q is not a CIDR such as 10.1.0.0/16", cidr)
	}
	return p.Masked()
}

// ports returns a range of ports.
func ports(first, last int32) (plan.PortRange, error) {
	switch {
	case first < 1 || first > 65535 || last < 1 || last > 65535:
		return plan.PortRange{}, errors.New("ports are numbers from 1 to 65535")
	case first > last:
		return plan.PortRange{}, fmt.Errorf("port %d is greater than %d, with which the range ends", first, last)
	}
	return plan.PortRange{First: uint16(first), Last: uint16(last)}, nil
}
