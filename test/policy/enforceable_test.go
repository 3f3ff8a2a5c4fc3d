package policy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/test/policy/oracle"
)

// enforceable is what data planes are given that cannot tell SCTP's ports apart.
type enforceable struct {
	compiled
	enforced map[string]*plan.Plan
}

func newEnforceable() subject {
	return &enforceable{compiled: *newCompiled().(*compiled)}
}

// become implements subject.
func (s *enforceable) become(c *oracle.Cluster) error {
	if err := s.compiled.become(c); err != nil {
		return err
	}
	enforced := map[string]*plan.Plan{}
	for name, p := range s.plans {
		enforced[name], _ = datapath.Enforceable(p, datapath.Capabilities{}, s.enforced[name])
		if err := enforced[name].Validate(); err != nil {
			return fmt.Errorf("the plan of %s, made enforceable: %w", name, err)
		}
	}
	s.enforced = enforced
	return nil
}

// evaluate implements subject. That SCTP is denied where it was allowed is as
// good.
func (s *enforceable) evaluate(p oracle.Packet) (oracle.Answer, string) {
	a, why := s.compiled.evaluate(p)
	x := plan.Explain(s.enforced, flowOf(p))
	if a.Allowed != x.Allowed && (x.Allowed || p.Protocol != corev1.ProtocolSCTP) {
		a.Allowed, why = x.Allowed, x.String()
	}
	return a, why
}

// TestEnforceable asks the same of plans that were made enforceable for data
// planes which cannot tell SCTP's ports apart.
func TestEnforceable(t *testing.T) { search(t, newEnforceable, *cases/10) }
