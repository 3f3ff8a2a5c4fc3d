package rtnl

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoModule has the words for a kernel without a kind of device.
func TestNoModule(t *testing.T) {
	if err := noModule(unix.EOPNOTSUPP, "vxlan"); !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "modprobe vxlan") {
		t.Error(err)
	}
	if err := noModule(unix.EEXIST, "vxlan"); err != unix.EEXIST {
		t.Error(err)
	}
}
