package linux_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/conformance"
	"github.com/weftnet/weft/datapath/linux"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, "linux", at)
}

// TestConformanceOfManyEnded has more connections end than can be remembered.
func TestConformanceOfManyEnded(t *testing.T) {
	defer linux.SetMaxEnded(1)()
	conformance.Run(t, "linux", at, "policy")
}

// TestConformanceOfManyClients has more clients than can be remembered.
func TestConformanceOfManyClients(t *testing.T) {
	defer linux.SetMaxClients(1)()
	conformance.Run(t, "linux", at, "crowd")
}

// TestConformanceOfManyCounts has Services be used more than can be counted: there is room for one backend, or for one
// of each.
func TestConformanceOfManyCounts(t *testing.T) {
	for _, room := range []uint32{1, conformance.SomeServices} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			defer linux.SetMostCounts(room)()
			conformance.Run(t, "linux", at, "memory")
		})
	}
}

// TestTakeOver has two data planes of this kind take over from one another.
func TestTakeOver(t *testing.T) {
	conformance.TakeOver(t, at, func(n conformance.Namespace) (datapath.DataPlane, error) {
		return linux.NewAt(n.Path(), linux.Config{Stamps: linux.OtherStamps})
	})
}

// TestConformanceWithoutLabels has a kernel that labels no connections, and so takes no
// rule that does.
func TestConformanceWithoutLabels(t *testing.T) {
	conformance.Run(t, "linux", func(n conformance.Namespace) (datapath.DataPlane, error) {
		d, err := linux.NewAt(n.Path(), linux.Config{})
		if err != nil {
			return nil, err
		}
		linux.WithoutLabels(d)
		return unlabelled{d, n.Path()}, nil
	}, "refusal", "tag")
}

// unlabelled is a data plane of which no rule may label connections.
type unlabelled struct {
	datapath.DataPlane
	path string
}

func (d unlabelled) Apply(ctx context.Context, p *plan.Plan) error {
	return errors.Join(d.DataPlane.Apply(ctx, p), netns.Do(d.path, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
		if err != nil {
			return err
		}
		for _, c := range chains {
			rules, err := conn.GetRules(c.Table, c)
			if err != nil {
				return err
			}
			for _, r := range rules {
				for _, e := range r.Exprs {
					if ct, ok := e.(*expr.Ct); ok && ct.Key == expr.CtKeyLABELS {
						return fmt.Errorf("chain %s of table %s has a rule about labels, which the kernel would not take", c.Name, c.Table.Name)
					}
				}
			}
		}
		return nil
	}))
}

func at(n conformance.Namespace) (datapath.DataPlane, error) {
	return linux.NewAt(n.Path(), linux.Config{})
}
