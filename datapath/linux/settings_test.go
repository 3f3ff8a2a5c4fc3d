package linux

import (
	"os"
	"strings"
	"testing"
)

// TestSettingsAreThoseOfTheFiles changes each setting by its file, and looks for
// that in what the kernel tells of the interface.
func TestSettingsAreThoseOfTheFiles(t *testing.T) {
	b := newBench(t)
	for _, d := range distrusted {
		if _, ok := places[d[0]]; !ok {
			t.Errorf("it is not known where the kernel tells %s", d[0])
		}
	}
	b.do(func() error {
		link := mustLink(t, "weftaaa").Attrs().Index
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
				s, err := b.kernel.settings(link)
				if err != nil {
					return err
				}
				if got, ok := s.value(setting); !ok || got != value || s.name != "weftaaa" {
					t.Errorf("%s of %s is told to be %q, %t, and is %s", setting, s.name, got, ok, value)
				}
			}
			if err := os.WriteFile(file, was, 0); err != nil {
				return err
			}
		}
		gone, err := b.kernel.settings(1 << 20)
		if _, ok := gone.value("ipv4/forwarding"); err != nil || ok {
			t.Errorf("an interface that is not there has settings: %v, %v", gone, err)
		}
		return nil
	})
}
