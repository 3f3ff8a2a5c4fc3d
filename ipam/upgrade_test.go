package ipam

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/plan"
)

// firstVersion is a journal that an agent of version 1 of the format has written.
const firstVersion = "testdata/version1.journal"

// TestJournalOfTheFirstVersion reads a journal from before there were networks, and
// goes on with it.
func TestJournalOfTheFirstVersion(t *testing.T) {
	data, err := os.ReadFile(firstVersion)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	j := open(t, path)
	if j.Damage() != nil {
		t.Fatal(j.Damage())
	}
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	addresses := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	whole := func(n int, pod string) Request {
		r := request(n)
		r.Configuration, r.NetNS, r.MTU = "weft", "/run/netns/"+pod, 1450
		r.PodName = PodName{Namespace: "shop", Pod: pod, UID: "uid-" + pod}
		return r
	}
	web, begun, found, other := whole(0, "web"), whole(3, "begun"), request(4), request(5)
	web.MTU = 1400
	found.PodName = PodName{Namespace: "shop", Pod: "found", UID: "uid-found"}
	other.Configuration, other.Unidentified = "weft", true
	gateways := addresses("10.1.0.1", "fd00:1::1")
	want := []Attachment{
		{Request: web, Addresses: addresses("10.1.0.2", "fd00:1::2"), Gateways: gateways, Router: gateways[0], Phase: Ready, Created: at("2026-11-23T19:22:02.413523055Z")},
		{Request: begun, Addresses: addresses("10.1.0.5", "fd00:1::5"), Gateways: gateways, Router: gateways[0], Phase: Pending, Created: at("2026-11-23T19:22:02.413581434Z")},
		{Request: found, Addresses: addresses("10.1.0.9"), Phase: Ready},
		{Request: other, Addresses: addresses("10.1.0.10"), Phase: Ready},
	}
	if diff := cmp.Diff(want, j.All(), ignoreCreated); diff != "" {
		t.Error(diff)
	}
	freed := []plan.Address{}
	for _, ip := range addresses("10.1.0.4", "fd00:1::4", "10.1.0.3", "fd00:1::3") {
		freed = append(freed, plan.Address{Network: plan.DefaultNetwork, IP: ip})
	}
	if diff := cmp.Diff(freed, j.state.freedInOrder(), ignoreCreated); diff != "" {
		t.Error(diff)
	}
	// It is of this version before another line is written: an agent of the first
	// would take that for one of the default network.
	now, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(now), `{"op":"weft-journal","version":2}`+"\n") {
		t.Fatalf("the file is %s, %v", now, err)
	}
	if _, err := j.Reserve(requestIn("red", 0), always(poolsIn("red", "10.1.0.0/28")), nil); err != nil {
		t.Fatal(err)
	}
	want = j.All()
	j.Close()
	again := open(t, path)
	if again.Damage() != nil {
		t.Fatal(again.Damage())
	}
	if diff := cmp.Diff(want, again.All(), ignoreCreated); diff != "" {
		t.Errorf("after a restart: %s", diff)
	}
	if got := reserve(t, again, 20, pools("10.1.0.0/28")).Addresses[0].String(); got != "10.1.0.6" {
		t.Errorf("the next pod has %s, not the first address never used", got)
	}
}

// TestCrashAtEveryByteOfTheFirstVersion has an agent of that version killed anywhere.
func TestCrashAtEveryByteOfTheFirstVersion(t *testing.T) {
	data, err := os.ReadFile(firstVersion)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "journal")
	for n := range len(data) {
		want := newState()
		for line := range bytes.Lines(data[:n]) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				continue
			}
			r, err := parse(line)
			if err == nil && r.Op != opHeader {
				err = want.apply(r)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(path, data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			j := open(t, path)
			if j.Damage() != nil {
				t.Fatalf("cut at byte %d: %v", n, j.Damage())
			}
			if diff := cmp.Diff(want.attachments, j.state.attachments, ignoreCreated); diff != "" {
				t.Fatalf("cut at byte %d: %s", n, diff)
			}
			if diff := cmp.Diff(want.freedInOrder(), j.state.freedInOrder(), ignoreCreated); diff != "" {
				t.Fatalf("cut at byte %d: %s", n, diff)
			}
			j.Close()
		}
	}
}

// TestDamagedFirstVersion loses each line of such a journal, the header too: what
// the others hold is held, in the default network.
func TestDamagedFirstVersion(t *testing.T) {
	data, err := os.ReadFile(firstVersion)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "journal")
	lines := bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	for n := range lines {
		broken := bytes.Clone(data)
		copy(broken[len(bytes.Join(lines[:n], nil)):], "\x00\x00\x00")
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		j := open(t, path)
		if j.Damage() == nil {
			t.Fatalf("line %d: no damage is seen", n+1)
		}
		for m, line := range lines {
			r, err := parse(line)
			if err != nil {
				t.Fatal(err)
			}
			if m == n || r.Op != opAttach || r.Attachment.ContainerID == "pod1" { // which is released
				continue
			}
			for addr := range r.Attachment.held() {
				if addr.Network != plan.DefaultNetwork || j.state.inUse[addr] != r.Attachment.Key {
					t.Errorf("damage in line %d lost %s of %s", n+1, addr, r.Attachment.Key)
				}
			}
		}
		j.Close()
	}
}
