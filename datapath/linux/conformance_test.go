package linux_test

import (
	"testing"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/conformance"
	"github.com/weftnet/weft/datapath/linux"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, "linux", func(n conformance.Namespace) (datapath.DataPlane, error) {
		return linux.NewAt(n.Path(), linux.Config{})
	})
}
