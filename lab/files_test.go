package lab

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

func TestPodFiles(t *testing.T) {
	r := podRecord{Pod: Pod{Namespace: "shop", Name: "web"}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd01::2")}}
	servers := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::a")}
	want := map[string]string{
		"/etc/resolv.conf": "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\nnameserver fd96::a\noptions ndots:5\n",
		"/etc/hosts": "# This pod's alone, made by the lab.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n" +
			"fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n10.1.0.2\tweb\nfd01::2\tweb\n",
		"/etc/hostname": "web\n",
	}
	for _, f := range podFiles(r, podResolvConf(servers, "shop", "cluster.local")) {
		if f.Content != want[f.Path] {
			t.Errorf("%s is\n%s", f.Path, f.Content)
		}
		delete(want, f.Path)
	}
	if len(want) > 0 {
		t.Errorf("there is none of %v", want)
	}
}

// TestCover has files be seen in one mount namespace in place of what is there: a file, one
// that a link leads to, and one that a link leads to in a /run that is gone.
func TestCover(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a mount namespace")
	}
	d := t.TempDir()
	plain, linked, gone, none := filepath.Join(d, "plain"), filepath.Join(d, "linked"), filepath.Join(d, "gone"), filepath.Join(d, "none")
	for _, err := range []error{os.WriteFile(plain, []byte("machine's\n"), 0o644), os.Symlink("plain", linked),
		os.Symlink("/run/weft-no-such/stub.conf", gone), os.Symlink("nowhere", none)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := followHost(); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
			return err
		}
		for _, path := range []string{linked, gone} {
			if err := cover(file{Path: path, Content: "own\n"}); err != nil {
				return err
			}
			if b, err := os.ReadFile(path); string(b) != "own\n" {
				t.Errorf("%s holds %q, %v", path, b, err)
			}
		}
		if b, err := os.ReadFile(plain); string(b) != "own\n" {
			t.Errorf("what %s leads to holds %q, %v", linked, b, err)
		}
		if _, err := os.Stat("/run/cover"); !os.IsNotExist(err) {
			t.Errorf("what the file came from is there still: %v", err)
		}
		// A pod covers what its node has covered.
		if err := cover(file{Path: linked, Content: "pod's\n"}); err != nil {
			return err
		}
		if b, err := os.ReadFile(plain); string(b) != "pod's\n" {
			t.Errorf("covered again it holds %q, %v", b, err)
		}
		if err := cover(file{Path: none}); err == nil {
			t.Error("a file that is not there was covered")
		}
		return cover(file{Path: none, IfThere: true})
	})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(plain); string(b) != "machine's\n" {
		t.Errorf("the machine sees %q, %v", b, err)
	}
	if _, err := os.Lstat("/run/weft-no-such"); !os.IsNotExist(err) {
		t.Errorf("the machine's /run has what is the test's: %v", err)
	}
}
