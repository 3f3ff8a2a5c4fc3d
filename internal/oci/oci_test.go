package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
)

// example has one of everything. Its second layer comes from a file.
func example(t *testing.T) Image {
	t.Helper()
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Image{
		Names:    []string{"registry.example.org/team/tool:v1.2", "registry.example.org:5000/tool:latest"},
		Platform: Platform{Architecture: "amd64", OS: "linux"},
		Created:  time.Date(2024, 5, 6, 7, 8, 9, 999, time.UTC),
		Config: Config{
			User: "1000:1000", Env: []string{"PATH=/bin", "EMPTY="}, WorkingDir: "/tmp",
			Entrypoint: []string{"/bin/tool"}, Cmd: []string{"--help"}, Labels: map[string]string{"b": "2", "a": "1"},
		},
		Layers: []Layer{
			{Files: []File{
				{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
				{Path: "/usr/bin/tool", Mode: fs.ModeSetuid | 0o755, Data: []byte("a tool\n")},
				{Path: "/bin", Mode: fs.ModeSymlink, Target: "usr/bin"},
				{Path: "/usr-local", Mode: 0o644},
			}},
			{Files: []File{{Path: "/etc/tool.conf", Mode: 0o640, Source: source}}},
		},
	}
}

func write(t *testing.T, i Image) (archive []byte, digest string) {
	t.Helper()
	var b bytes.Buffer
	digest, err := i.Write(&b)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), digest
}

// read returns the files of a tar archive.
func read(t *testing.T, r io.Reader) (headers []*tar.Header, contents map[string][]byte) {
	t.Helper()
	contents = map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		} else if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		headers, contents[h.Name] = append(headers, h), data
	}
}

// The golden file is what the archive holds, in the order of the archive, with
// layers unpacked. Its first line pins every byte of the image by the digest.
func TestTheArchiveOfAnImage(t *testing.T) {
	archive, digest := write(t, example(t))
	got := &txtar.Archive{Comment: []byte(digest + "\n")}
	headers, contents := read(t, bytes.NewReader(archive))
	for _, h := range headers {
		data := contents[h.Name]
		if strings.HasPrefix(h.Name, "blobs/") {
			if sum := digestOf(data); sum.path() != h.Name {
				t.Errorf("the blob %s has the digest %s", h.Name, sum)
			}
		}
		if json.Valid(data) {
			var indented bytes.Buffer
			_ = json.Indent(&indented, data, "", "  ") // it is valid
			got.Files = append(got.Files, txtar.File{Name: h.Name, Data: append(indented.Bytes(), '\n')})
			continue
		}
		var listing bytes.Buffer
		files, inside := read(t, bytes.NewReader(data))
		for _, f := range files {
			fmt.Fprintf(&listing, "%c %05o %d:%d %s %s -> %q %q\n", f.Typeflag, f.Mode, f.Uid, f.Gid,
				f.ModTime.UTC().Format(time.RFC3339Nano), f.Name, f.Linkname, inside[f.Name])
		}
		got.Files = append(got.Files, txtar.File{Name: h.Name, Data: listing.Bytes()})
	}
	golden.File(t, filepath.Join("testdata", "image.txtar"), txtar.Format(got))
}

func TestTheSameDescriptionGivesTheSameBytes(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		one, two := example(t), example(t)
		for n := range one.Layers {
			one.Layers[n].Gzip, two.Layers[n].Gzip = compressed, compressed
		}
		rand.Shuffle(len(two.Layers[0].Files), func(i, j int) {
			f := two.Layers[0].Files
			f[i], f[j] = f[j], f[i]
		})
		// A source is its content: neither its name, its owner, its time nor
		// its mode are in the image.
		if err := errors.Join(
			os.Chmod(two.Layers[1].Files[0].Source, 0o777),
			os.Chtimes(two.Layers[1].Files[0].Source, time.Time{}, time.Unix(12345, 0)),
		); err != nil {
			t.Fatal(err)
		}
		a, digest := write(t, one)
		b, again := write(t, two)
		if !bytes.Equal(a, b) || digest != again {
			t.Errorf("gzip %v: two archives of one description differ: %s and %s", compressed, digest, again)
		}
		alone, err := one.Digest()
		if err != nil || alone != digest {
			t.Errorf("gzip %v: Digest is %s, %v; Write says %s", compressed, alone, err, digest)
		}
	}
}

func TestEveryPartOfTheDescriptionIsInTheDigest(t *testing.T) {
	was, err := example(t).Digest()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Image){
		"time":       func(i *Image) { i.Created = i.Created.Add(time.Second) },
		"platform":   func(i *Image) { i.Platform.Architecture = "arm64" },
		"user":       func(i *Image) { i.Config.User = "" },
		"entrypoint": func(i *Image) { i.Config.Entrypoint = nil },
		"content":    func(i *Image) { i.Layers[0].Files[1].Data = []byte("A tool\n") },
		"mode":       func(i *Image) { i.Layers[0].Files[3].Mode = 0o600 },
		"target":     func(i *Image) { i.Layers[0].Files[2].Target = "/usr/bin" },
		"compressed": func(i *Image) { i.Layers[0].Gzip = true },
		"order":      func(i *Image) { slices.Reverse(i.Layers) },
	} {
		changed := example(t)
		change(&changed)
		if now, err := changed.Digest(); err != nil || now == was {
			t.Errorf("with another %s the digest is %s, %v", name, now, err)
		}
	}
}

func TestACompressedLayerIsTheSameLayer(t *testing.T) {
	plain, compressed := example(t), example(t)
	compressed.Layers[0].Gzip = true
	a, _ := write(t, plain)
	b, _ := write(t, compressed)
	first := func(archive []byte) (layer []byte, diffID digest) {
		_, files := read(t, bytes.NewReader(archive))
		var ix index
		var m manifest
		var c configFile
		for _, step := range []struct {
			path func() string
			into any
		}{
			{func() string { return "index.json" }, &ix},
			{func() string { return ix.Manifests[0].Digest.path() }, &m},
			{func() string { return m.Config.Digest.path() }, &c},
		} {
			if err := json.Unmarshal(files[step.path()], step.into); err != nil {
				t.Fatal(err)
			}
		}
		return files[m.Layers[0].Digest.path()], c.RootFS.DiffIDs[0]
	}
	layer, id := first(a)
	packed, packedID := first(b)
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(layer, unpacked) || id != packedID || id != digestOf(layer) {
		t.Errorf("the layer %s and its compressed form %s differ", id, packedID)
	}
}

func TestWhatIsWrongIsRefused(t *testing.T) {
	file := func(f File) func(*Image) {
		return func(i *Image) { i.Layers[0].Files = append(i.Layers[0].Files, f) }
	}
	for want, change := range map[string]func(*Image){
		"has no name": func(i *Image) { i.Names = nil },
		`image name "weftnet/weft:v1": it must be complete`:              func(i *Image) { i.Names[0] = "weftnet/weft:v1" },
		`image name "docker.io/weftnet/weft": it must be complete`:       func(i *Image) { i.Names[1] = "docker.io/weftnet/weft" },
		`image name "docker.io/weftnet/weft:a b": it must be complete`:   func(i *Image) { i.Names[0] = "docker.io/weftnet/weft:a b" },
		`image name "registry.example.org:5000/tool:latest" is there tw`: func(i *Image) { i.Names = append(i.Names, i.Names[1]) },
		`platform ""/"amd64" is incomplete`:                              func(i *Image) { i.Platform.OS = "" },
		"has no layer":                                                   func(i *Image) { i.Layers = nil },
		`environment "PATH" is not NAME=value`:                           func(i *Image) { i.Config.Env = []string{"PATH"} },
		`working directory "tmp" is not absolute`:                        func(i *Image) { i.Config.WorkingDir = "tmp" },
		"is not in the years 1970 to 9999":                               func(i *Image) { i.Created = time.Unix(-1, 0) },
		`file "/../etc/passwd": the path must be absolute and clean`:     file(File{Path: "/../etc/passwd", Mode: 0o644}),
		`file "etc/passwd": the path must be absolute and clean`:         file(File{Path: "etc/passwd", Mode: 0o644}),
		`file "/etc//passwd": the path must be absolute and clean`:       file(File{Path: "/etc//passwd", Mode: 0o644}),
		`file "/": the path must be absolute and clean`:                  file(File{Path: "/", Mode: fs.ModeDir | 0o755}),
		`file "": the path must be absolute and clean`:                   file(File{Mode: 0o644}),
		`file "/a\x00b": a path cannot contain a zero byte`:              file(File{Path: "/a\x00b", Mode: 0o644}),
		`file "/etc/.wh.passwd": names that begin with .wh.`:             file(File{Path: "/etc/.wh.passwd", Mode: 0o644}),
		`file "/tmp": it is in the layer twice`:                          file(File{Path: "/tmp", Mode: 0o644}),
		`file "/bin/sh": /bin above it is in the layer and not a direc`:  file(File{Path: "/bin/sh", Mode: 0o755}),
		`file "/dev/null": mode Dcrw-rw-rw-: only regular files`:         file(File{Path: "/dev/null", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666}),
		`file "/x": the mode has no permissions`:                         file(File{Path: "/x"}),
		`file "/x": a symbolic link needs a Target`:                      file(File{Path: "/x", Mode: fs.ModeSymlink}),
		`file "/x": a symbolic link needs a Target, and nothing`:         file(File{Path: "/x", Mode: 0o644, Target: "y"}),
		`file "/x": only a regular file has Data`:                        file(File{Path: "/x", Mode: fs.ModeDir | 0o755, Data: []byte{}}),
		`file "/x": a file has Data or a Source, not both`:               file(File{Path: "/x", Mode: 0o644, Data: []byte{}, Source: "y"}),
		`file "/x": stat /nonexistent/y: no such file`:                   file(File{Path: "/x", Mode: 0o644, Source: "/nonexistent/y"}),
		`file "/x": its source / is not a regular file`:                  file(File{Path: "/x", Mode: 0o644, Source: "/"}),
	} {
		i := example(t)
		change(&i)
		name := filepath.Join(t.TempDir(), "image.tar")
		if _, err := i.WriteFile(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error should say %q; it is: %v", want, err)
		}
		if left, err := os.ReadDir(filepath.Dir(name)); err != nil || len(left) > 0 {
			t.Errorf("%s: a refused image left %v, %v", want, left, err)
		}
	}
}

// changing writes to a source file when the image begins to be written, which
// is when the source has been measured.
type changing struct {
	t      *testing.T
	source string
	to     string
}

func (c changing) Write(p []byte) (int, error) {
	if err := os.WriteFile(c.source, []byte(c.to), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return len(p), nil
}

func TestASourceThatChangesWhileItIsWrittenIsNamed(t *testing.T) {
	for _, to := range []string{"FROM A FILE\n", "longer than the file was, by more than a block of the archive\n" + strings.Repeat("x", 1024), ""} {
		i := example(t)
		source := i.Layers[1].Files[0].Source
		if _, err := i.Write(changing{t, source, to}); err == nil || !strings.Contains(err.Error(), source) {
			t.Errorf("the source became %d bytes while the image was written, and the error is %v", len(to), err)
		}
	}
}

func TestAnImageFileReplacesTheOneBefore(t *testing.T) {
	name := filepath.Join(t.TempDir(), "image.tar")
	for range 2 {
		if _, err := example(t).WriteFile(name); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := write(t, example(t)); !bytes.Equal(got, want) {
		t.Error("the file is not what Write writes")
	}
	if left, _ := os.ReadDir(filepath.Dir(name)); len(left) != 1 {
		t.Errorf("beside the image there is %v", left)
	}
}
