package netns

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func self(t *testing.T) string {
	t.Helper()
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestANamespaceDoesNotLeak(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	before := self(t)
	for range 50 {
		err := Thread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if self(t) == before {
				t.Error("the thread is in no namespace of its own")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		err = Thread(func() error {
			if self(t) != before {
				t.Error("another thread began in a namespace it did not enter")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if main, err := os.Readlink("/proc/self/ns/net"); err != nil || main != before {
		t.Errorf("the main thread is in %s, not in %s (%v)", main, before, err)
	}
}

func TestDoSaysWhatIsMissing(t *testing.T) {
	for _, enter := range []func(string, func() error) error{Do, Visit} {
		err := enter("/nonexistent/ns", func() error { t.Error("ran all the same"); return nil })
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error is %v", err)
		}
	}
}

func TestAVisitEndsWhereItBegan(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	before := self(t)
	var other *os.File
	if err := Thread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		other, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	failure := errors.New("of f")
	path := fmt.Sprintf("/proc/self/fd/%d", other.Fd())
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := Visit(path, func() error {
				if self(t) == before {
					t.Error("the visitor stayed at home")
				}
				return failure
			}); err != failure {
				t.Errorf("error is %v", err)
			}
		})
		wg.Go(func() {
			if self(t) != before {
				t.Error("a visitor left its thread elsewhere")
			}
		})
	}
	wg.Wait()
}
