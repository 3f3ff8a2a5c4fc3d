package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// programs returns a directory that stands for that of the cluster's programs,
// or skips the test when one of those that images need is not cached.
func programs(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("the programs of the cluster are not cached: %v", err)
	}
	bin := t.TempDir()
	for _, name := range []string{"agnhost", "coredns", "kube-proxy", "nginx"} {
		cached := filepath.Join(cache, "weft", "kubernetes", "bin", name)
		if _, err := os.Stat(cached); err != nil {
			t.Skipf("%v: test/kubernetes/programs/build and test/kubernetes/deps.sh put it there", err)
		}
		if err := os.Symlink(cached, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// written is an image as it was read back.
type written struct {
	names []string
	user  string
	start []string               // entry point and command
	env   []string               // environment
	files map[string]*tar.Header // by path without a leading slash, of all layers
	needs map[string]needs       // of the files that are ELF
}

// readBack reads an archive, and unpacks its layers into dir unless it is empty.
func readBack(t *testing.T, archive, dir string) written {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := written{files: map[string]*tar.Header{}, needs: map[string]needs{}}
	blob := map[string][]byte{}
	blobs := map[string]io.Reader{}
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		// Layers stay in the file, the rest is small.
		if h.Size > 1<<16 {
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				t.Fatal(err)
			}
			blobs[h.Name] = io.NewSectionReader(f, at, h.Size)
			continue
		}
		if blob[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
		blobs[h.Name] = bytes.NewReader(blob[h.Name])
	}
	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	var config struct {
		Config struct {
			User                 string
			Entrypoint, Cmd, Env []string
		}
	}
	if err := json.Unmarshal(blob["manifest.json"], &docker); err != nil {
		t.Fatalf("%s: manifest.json: %v", archive, err)
	}
	if err := json.Unmarshal(blob[docker[0].Config], &config); err != nil {
		t.Fatalf("%s: configuration: %v", archive, err)
	}
	w.names, w.user, w.env = docker[0].RepoTags, config.Config.User, config.Config.Env
	w.start = append(config.Config.Entrypoint, config.Config.Cmd...)
	for _, layer := range docker[0].Layers {
		w.readLayer(t, tar.NewReader(blobs[layer]), dir)
	}
	return w
}

func (w written) readLayer(t *testing.T, layer *tar.Reader, dir string) {
	for {
		h, err := layer.Next()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(layer)
		if err != nil {
			t.Fatal(err)
		}
		name := path.Clean(h.Name)
		w.files[name] = h
		if bytes.HasPrefix(data, []byte("\x7fELF")) {
			n, err := readNeeds(bytes.NewReader(data))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			w.needs[name] = n
		}
		if dir == "" {
			continue
		}
		to := filepath.Join(dir, name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = errors.Join(os.MkdirAll(to, 0o755), os.Chmod(to, h.FileInfo().Mode()))
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, to)
		default:
			err = os.WriteFile(to, data, h.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// find follows symbolic links, of directories and of the file itself, and tells
// which regular file of the image the path means; "" is none.
func (w written) find(name string) string {
	at := ""
	rest := strings.Split(strings.Trim(name, "/"), "/")
	for links := 0; len(rest) > 0 && links < 40; {
		at, rest = path.Join(at, rest[0]), rest[1:]
		if h := w.files[at]; h != nil && h.Typeflag == tar.TypeSymlink {
			target := h.Linkname
			if !path.IsAbs(target) {
				target = path.Join("/", path.Dir(at), target)
			}
			at, rest = "", append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
			links++
		}
	}
	if h := w.files[at]; h == nil || h.Typeflag != tar.TypeReg {
		return ""
	}
	return at
}

// unmet lists what programs and libraries of the image need and the image does
// not have.
func (w written) unmet() []string {
	var all []string
	for file, n := range w.needs {
		if n.interpreter != "" && w.find(n.interpreter) == "" {
			all = append(all, file+" needs "+n.interpreter)
		}
		for _, library := range n.libraries {
			there := false
			for _, dir := range []string{"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu"} {
				there = there || w.needs[w.find(path.Join(dir, library))].machine == n.machine
			}
			if !there {
				all = append(all, file+" needs "+library)
			}
		}
	}
	return all
}

func TestImages(t *testing.T) {
	bin, dir := programs(t), t.TempDir()
	paths, err := Write(t.Context(), bin, dir)
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]written{} // by name
	for _, p := range paths {
		w := readBack(t, p, "")
		for _, name := range w.names {
			if _, twice := images[name]; twice {
				t.Errorf("two images have the name %s", name)
			}
			images[name] = w
		}
	}

	t.Run("every library that a program needs is in its image", func(t *testing.T) {
		for name, w := range images {
			if len(w.needs) == 0 {
				t.Errorf("%s has no program", name)
			}
			for _, missing := range w.unmet() {
				t.Errorf("%s: %s", name, missing)
			}
		}
		// The check finds what it looks for.
		agnhost := images["registry.k8s.io/e2e-test-images/agnhost:2.59"]
		libc := agnhost.find("/lib/x86_64-linux-gnu/libc.so.6") + agnhost.find("/lib/aarch64-linux-gnu/libc.so.6")
		delete(agnhost.files, libc)
		if len(agnhost.unmet()) < 10 {
			t.Errorf("agnhost without its C library (%q) would be complete", libc)
		}
	})

	t.Run("every image starts a program that it has", func(t *testing.T) {
		for name, w := range images {
			if len(w.start) == 0 {
				continue // a pod has to say what it runs
			}
			candidates := []string{w.start[0]}
			if !path.IsAbs(w.start[0]) {
				candidates = nil
				for _, dir := range filepath.SplitList(strings.TrimPrefix(strings.Join(w.env, ""), "PATH=")) {
					candidates = append(candidates, path.Join(dir, w.start[0]))
				}
			}
			if !slices.ContainsFunc(candidates, func(c string) bool {
				h := w.files[w.find(c)]
				return h != nil && h.Mode&0o111 != 0
			}) {
				t.Errorf("%s runs %q, which is not a program in it", name, w.start)
			}
		}
	})

	t.Run("the specs of sig-network ask for these images only", func(t *testing.T) {
		asked := askedFor(t)
		if len(asked) < 5 {
			t.Fatalf("the specs ask for %v only", asked)
		}
		for reference, file := range asked {
			if _, there := images[reference]; !there {
				t.Errorf("%s asks for %s, which is not written", file, reference)
			}
		}
		for _, m := range Missing {
			if _, there := images[m.Image]; there {
				t.Errorf("%s is in Missing and is written", m.Image)
			}
		}
	})

	t.Run("what is there is kept, what changed is written again", func(t *testing.T) {
		keptAs := stat(t, filepath.Join(dir, "busybox.tar"))
		coredns := filepath.Join(bin, "coredns")
		if err := errors.Join(os.Remove(coredns), os.WriteFile(coredns, []byte("another program"), 0o755),
			os.Remove(filepath.Join(dir, "pause.tar"))); err != nil {
			t.Fatal(err)
		}
		changedAs := stat(t, filepath.Join(dir, "coredns.tar"))
		again, err := Write(t.Context(), bin, dir)
		if err != nil || strings.Join(again, " ") != strings.Join(paths, " ") {
			t.Fatalf("Write returned %v, %v; the first time %v", again, err, paths)
		}
		if !os.SameFile(keptAs, stat(t, filepath.Join(dir, "busybox.tar"))) {
			t.Error("busybox was written twice")
		}
		stat(t, filepath.Join(dir, "pause.tar"))
		if now := stat(t, filepath.Join(dir, "coredns.tar")); os.SameFile(changedAs, now) || now.Size() > 1<<16 {
			t.Errorf("the image of a small coredns has %d bytes", now.Size())
		}
	})

	t.Run("a program that is not there is named", func(t *testing.T) {
		if err := os.Remove(filepath.Join(bin, "agnhost")); err != nil {
			t.Fatal(err)
		}
		if _, err := Write(t.Context(), bin, dir); err == nil || !strings.Contains(err.Error(), filepath.Join(bin, "agnhost")) {
			t.Errorf("without agnhost Write says %v", err)
		}
	})
}

func stat(t *testing.T, name string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// askedFor returns the images that the sources of the sig-network specs name,
// each with a file that does.
func askedFor(t *testing.T) map[string]string {
	t.Helper()
	tree, err := goCommand(t.Context(), filepath.Join("..", "programs", "kubernetes"), "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join(tree, "test", "utils", "image", "manifest.go"))
	if err != nil {
		t.Fatal(err)
	}
	registries := map[string]string{}
	for _, m := range regexp.MustCompile(`(\w+): +"([\w./-]+)",`).FindAllSubmatch(manifest, -1) {
		registries[string(m[1])] = string(m[2])
	}
	references := map[string]string{}
	for _, m := range regexp.MustCompile(`configs\[(\w+)\] += Config\{list\.(\w+), "([^"]+)", "([^"]+)"\}`).FindAllSubmatch(manifest, -1) {
		references[string(m[1])] = registries[string(m[2])] + "/" + string(m[3]) + ":" + string(m[4])
	}
	asked := map[string]string{references["Pause"]: "the kubelet"}
	use := regexp.MustCompile(`imageutils\.(\w+)`)
	for _, dir := range []string{"network", "common/network", "framework/network", "framework/service", "framework/pod"} {
		err := filepath.WalkDir(filepath.Join(tree, "test", "e2e", dir), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") {
				return err
			}
			source, err := os.ReadFile(file)
			for _, m := range use.FindAllSubmatch(source, -1) {
				if reference := references[string(m[1])]; reference != "" {
					asked[reference] = strings.TrimPrefix(file, tree)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return asked
}

// The programs of an image run with nothing but the image.
func TestProgramsRunInTheirImages(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make the image the root of a process")
	}
	paths, err := Write(t.Context(), programs(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	agnhostTools := [][2]string{
		{"/agnhost help", "serve-hostname"}, {"/agnhost-2 help", "serve-hostname"}, {"/coredns -version", "CoreDNS-1."},
		{"dig -v", "DiG 9"}, {"nslookup -version", "nslookup 9"}, {"host -V", "host 9"},
		{"curl --version", "https"}, {"nc -h", "OpenBSD netcat"}, {"iperf -v; true", "iperf version 2"},
		{"ip -V", "iproute2"}, {"ss -V", "iproute2"}, {"getent passwd user-defined-in-image", ":1000:1000:"},
		{"echo $BASH_VERSION", "5."}, {"hostname", ""}, {"echo a b | awk '{print $2}'", "b"}, {"timeout 5 nsenter --help", "nsenter"},
	}
	for image, commands := range map[string][][2]string{
		"agnhost.tar":             agnhostTools,
		"busybox.tar":             {{"busybox | head -1", "BusyBox v1."}, {"nc 2>&1; true", "BusyBox"}, {"wget -q -O - -T 1 http://127.0.0.1:1; echo $?", "4"}},
		"nginx.tar":               {{"nginx -v", "nginx/1."}, {"mkdir /dev; nginx -t", "test is successful"}},
		"distroless-iptables.tar": {{"iptables --version", "nf_tables"}, {"iptables -m comment --help", "comment match"}, {"which conntrack", "/usr/sbin/conntrack"}, {"conntrack --version", "conntrack v1"}},
	} {
		for _, p := range paths {
			if filepath.Base(p) != image {
				continue
			}
			root := t.TempDir()
			w := readBack(t, p, root)
			for _, c := range commands {
				cmd := exec.Command("/bin/sh", "-c", c[0])
				cmd.Env, cmd.Dir = w.env, "/"
				cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), c[1]) {
					t.Errorf("%s: %s: %v, and it says %q; it should say %q", image, c[0], err, out, c[1])
				}
			}
		}
	}
}
