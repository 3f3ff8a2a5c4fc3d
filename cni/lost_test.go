package cni

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// TestForget frees what has no interface, and nothing else.
func TestForget(t *testing.T) {
	journal, err := ipam.Open(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	adopt := func(container string, phase ipam.Phase) ipam.Attachment {
		a := ipam.Attachment{Request: ipam.Request{Key: ipam.Key{ContainerID: container, IfName: "eth0"}, Network: plan.DefaultNetwork, HostInterface: podlink.HostName(container, "eth0")},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, container[0]})}, Phase: phase}
		if err := journal.Adopt(a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	s := NewServer(Config{Journal: journal, Node: nothing{}, Log: slog.New(slog.DiscardHandler)})
	s.Recover()
	lost, there := adopt("a", ipam.Ready), adopt("b", ipam.Ready)
	begun := adopt("c", ipam.Pending)
	s.setLink(there.Key, 7)
	if got := s.Lost(); len(got) != 1 || got[0].Key != lost.Key {
		t.Errorf("lost are %v", got)
	}
	for _, a := range []ipam.Attachment{lost, there, begun} {
		if err := s.Forget(t.Context(), a); err != nil {
			t.Error(err)
		}
	}
	if left := journal.All(); len(left) != 2 || left[0].Key != there.Key || left[1].Key != begun.Key {
		t.Errorf("left are %v", left)
	}
}
