package rtnl

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/stamps"
)

// TestSettingsAreThoseOfTheFiles changes each setting by its file, and looks for
// that in what the kernel tells of the interface; and changes it as Weft does, and
// looks into the file.
func TestSettingsAreThoseOfTheFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, d := range distrusted {
		if _, ok := places[d.setting]; !ok {
			t.Errorf("it is not known where the kernel tells %s", d.setting)
		}
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends here
		result <- settingsAreThoseOfTheFiles(t)
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

func settingsAreThoseOfTheFiles(t *testing.T) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	k, err := Open(stamps.Default, t.Logf)
	if err != nil {
		return err
	}
	defer k.Close()
	if err := k.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "weftaaa"}, PeerName: "pod"}); err != nil {
		return err
	}
	l, err := k.LinkByName("weftaaa")
	if err != nil {
		return err
	}
	link := l.Attrs().Index
	for setting := range places {
		family, name, _ := strings.Cut(setting, "/")
		file := "/proc/sys/net/" + family + "/conf/weftaaa/" + name
		was, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			t.Logf("this kernel has no %s", setting)
			continue
		}
		next := "1"
		if strings.TrimSpace(string(was)) == next {
			next = "0"
		}
		for _, value := range []string{strings.TrimSpace(string(was)), next} {
			if err := os.WriteFile(file, []byte(value), 0); err != nil {
				return err
			}
			s, err := k.Settings(link)
			if err != nil {
				return err
			}
			if got, ok := s.value(setting); !ok || got != value || s.Name != "weftaaa" {
				t.Errorf("%s of %s is told to be %q, %t, and is %s", setting, s.Name, got, ok, value)
			}
		}
		before := strings.TrimSpace(string(was))
		s, err := k.Settings(link)
		if err == nil {
			err = k.assign(s, assignment{setting, before})
		}
		if err != nil {
			return err
		}
		if now, err := os.ReadFile(file); string(now) != string(was) {
			t.Errorf("%s is %q and not %q, %v", setting, now, was, err)
		}
	}
	gone, err := k.Settings(1 << 20)
	if _, ok := gone.value("ipv4/forwarding"); err != nil || ok {
		t.Errorf("an interface that is not there has settings: %v, %v", gone, err)
	}
	// What was read of an interface that is gone meanwhile is not set, and no error.
	s, err := k.Settings(link)
	if err == nil {
		err = k.LinkDel(l)
	}
	if err == nil {
		err = k.assign(s, assignment{"ipv4/arp_ignore", "7"}, assignment{"ipv4/forwarding", "0"}, assignment{"ipv6/accept_ra", "2"})
	}
	if err != nil {
		return err
	}
	return nil
}
