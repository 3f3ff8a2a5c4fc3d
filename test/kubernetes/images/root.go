package images

import (
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/oci"
)

// root gathers the files of an image, laid out as Debian does. What goes wrong
// first is kept in err, so that a description reads as a list.
type root struct {
	files map[string]oci.File
	err   error
}

func newRoot() *root {
	r := &root{files: map[string]oci.File{}}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		r.link("/"+dir, "usr/"+dir)
		r.dir("/usr/"+dir, 0o755)
	}
	r.dir("/tmp", fs.ModeSticky|0o777)
	r.dir("/run", 0o755)
	r.dir("/root", 0o700)
	r.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
	r.text("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
	return r
}

// layer returns what was gathered.
func (r *root) layer() (oci.Layer, error) {
	var l oci.Layer
	for _, f := range r.files {
		l.Files = append(l.Files, f)
	}
	return l, r.err
}

func (r *root) dir(path string, mode fs.FileMode) {
	r.files[path] = oci.File{Path: path, Mode: fs.ModeDir | mode}
}

func (r *root) link(path, target string) {
	r.files[path] = oci.File{Path: path, Mode: fs.ModeSymlink, Target: target}
}

func (r *root) text(path, content string) {
	r.files[path] = oci.File{Path: path, Mode: 0o644, Data: []byte(content)}
}

// busybox adds busybox with all its names. What is added later under one of
// these names replaces it.
func (r *root) busybox(applets []string) {
	for _, name := range applets {
		r.link("/usr/bin/"+name, "busybox")
	}
	r.debian("/usr/bin/busybox", "busybox")
	// Debian's busybox crashes in wget -T, which specs use.
	r.debian("/usr/bin/wget", "wget")
}

// debian adds a program of a Debian package under path.
func (r *root) debian(path, name string) {
	source, err := exec.LookPath(name)
	if err != nil {
		r.fail(fmt.Errorf("%w: test/kubernetes/deps.sh installs it", err))
		return
	}
	r.program(path, source)
}

// program adds the program or shared library source under path, with the
// libraries that it needs.
func (r *root) program(path, source string) {
	r.files[path] = oci.File{Path: path, Mode: 0o755, Source: source}
	needs, err := needsOf(source)
	if err != nil {
		r.fail(err)
		return
	}
	if needs.interpreter != "" {
		// A path such as /lib64/ld-linux-x86-64.so.2, and /lib64 is a link.
		r.library("/usr"+needs.interpreter, needs.interpreter)
	}
	for _, name := range needs.libraries {
		found := librariesOf(needs.machine, name)
		if len(found) == 0 {
			r.fail(fmt.Errorf("%s needs the library %s, which is not in /usr/lib/*-linux-gnu* for %v", source, name, needs.machine))
			return
		}
		r.library(found[0], found[0])
	}
}

// loadable adds the libraries that match the pattern: those that programs load
// without naming them in their headers.
func (r *root) loadable(pattern string) {
	self, err := needsOf("/proc/self/exe")
	if err != nil {
		r.fail(err)
		return
	}
	found := librariesOf(self.machine, pattern)
	if len(found) == 0 {
		r.fail(fmt.Errorf("no library %s in /usr/lib/*-linux-gnu* for %v: test/kubernetes/deps.sh installs what has it", pattern, self.machine))
	}
	for _, file := range found {
		r.library(file, file)
	}
}

// library adds a library and what it needs, unless it is there.
func (r *root) library(path, source string) {
	if _, there := r.files[path]; !there {
		r.program(path, source)
	}
}

func (r *root) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// needs is what a program or a library wants to be loaded with it.
type needs struct {
	machine     elf.Machine
	interpreter string   // path of the dynamic loader; empty for libraries and static programs
	libraries   []string // names, DT_NEEDED
}

func needsOf(file string) (needs, error) {
	f, err := os.Open(file)
	if err != nil {
		return needs{}, err
	}
	defer f.Close()
	n, err := readNeeds(f)
	if err != nil {
		return needs{}, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

func readNeeds(r io.ReaderAt) (needs, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return needs{}, err
	}
	n := needs{machine: f.Machine}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
		if err != nil {
			return needs{}, err
		}
		n.interpreter = strings.TrimRight(string(name), "\x00")
	}
	n.libraries, err = f.ImportedLibraries()
	return n, err
}

// librariesOf returns the files that match the pattern in Debian's directory of
// libraries for the machine, which its loader searches without being told.
func librariesOf(machine elf.Machine, pattern string) []string {
	// The only error is that of a wrong pattern, which matches nothing.
	found, _ := filepath.Glob(path.Join("/usr/lib/*-linux-gnu*", pattern))
	return slices.DeleteFunc(found, func(file string) bool {
		n, err := needsOf(file)
		return err != nil || n.machine != machine
	})
}
