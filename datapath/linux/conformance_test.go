package linux_test

import (
	"testing"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/conformance"
	"github.com/weftnet/weft/datapath/linux"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, "linux", at)
}

// TestConformanceOfManyEnded has more connections end than can be remembered.
func TestConformanceOfManyEnded(t *testing.T) {
	defer linux.SetMaxEnded(1)()
	conformance.Run(t, "linux", at, "policy")
}

// TestTakeOver has two data planes of this kind take over from one another.
func TestTakeOver(t *testing.T) {
	conformance.TakeOver(t, at, func(n conformance.Namespace) (datapath.DataPlane, error) {
		return linux.NewAt(n.Path(), linux.Config{Stamps: linux.OtherStamps})
	})
}

// TestConformanceWithoutLabels has a kernel that labels no connections.
func TestConformanceWithoutLabels(t *testing.T) {
	conformance.Run(t, "linux", func(n conformance.Namespace) (datapath.DataPlane, error) {
		d, err := linux.NewAt(n.Path(), linux.Config{})
		if err == nil {
			linux.WithoutLabels(d)
		}
		return d, err
	}, "refusal", "tag")
}

func at(n conformance.Namespace) (datapath.DataPlane, error) {
	return linux.NewAt(n.Path(), linux.Config{})
}
