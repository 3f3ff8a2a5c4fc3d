// Package oci writes container images without a container engine.
//
// An [Image] is a description: layers of files, how to run them, and the names
// under which the image is to be known. [Image.Write] turns it into a tar
// archive of an OCI image layout (image-spec v1.1), which `ctr images import`,
// `podman load` and `docker load` take. The same description gives the same
// bytes: entries are sorted, all belong to root, and every time is the image's
// own. (Compressed layers also depend on the Go release that compressed them.)
//
// A layer is read twice, once to learn its digest and once to write it, so that
// an image of any size needs neither memory nor a temporary copy.
package oci

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Image describes an image for one platform.
type Image struct {
	// Names are complete references with registry and tag, such as
	// docker.io/weftnet/weft:v1, because that is what a kubelet makes of the
	// short forms before it asks its runtime. At least one is needed.
	Names    []string
	Platform Platform
	Config   Config
	// Layers lie on top of each other, the first at the bottom.
	Layers []Layer
	// Created is the time of the image and of every file in it, in whole
	// seconds. The zero Time is taken as the Unix epoch.
	Created time.Time
}

// Platform is what the image runs on, in Go's terms (GOOS, GOARCH), which are
// those of the specification.
type Platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// Config is how the image is run unless a pod says otherwise.
type Config struct {
	User       string            `json:"User,omitempty"` // name or number, with :group if wanted; root if empty
	Env        []string          `json:"Env,omitempty"`  // NAME=value
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Cmd        []string          `json:"Cmd,omitempty"`
	WorkingDir string            `json:"WorkingDir,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

// Media types of image-spec v1.
const (
	typeManifest  = "application/vnd.oci.image.manifest.v1+json"
	typeIndex     = "application/vnd.oci.image.index.v1+json"
	typeConfig    = "application/vnd.oci.image.config.v1+json"
	typeLayer     = "application/vnd.oci.image.layer.v1.tar"
	typeLayerGzip = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      digest            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *Platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type configFile struct {
	Created time.Time `json:"created"`
	Platform
	Config Config    `json:"config"`
	RootFS rootFS    `json:"rootfs"`
	Past   []history `json:"history"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []digest `json:"diff_ids"` // of the layers before compression
}

type history struct {
	Created time.Time `json:"created"`
}

// dockerManifest is an entry of manifest.json, in which Docker's own image
// store looks for what the archive holds.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// digest is the name of a blob: sha256: and 64 hexadecimal digits.
type digest string

func digestOf(data []byte) digest {
	sum := sha256.Sum256(data)
	return digest("sha256:" + hex.EncodeToString(sum[:]))
}

// path is where a layout keeps the blob.
func (d digest) path() string { return "blobs/sha256/" + string(d[len("sha256:"):]) }

// layout is an image with every digest known.
type layout struct {
	created  time.Time
	names    []string
	layers   []measured
	config   []byte
	manifest []byte
	index    []byte
}

// Digest returns the digest of the image's manifest, sha256: and 64 hexadecimal
// digits, which identifies everything in the image but its names. It reads
// every source file. Errors are those of [Image.Write].
func (i Image) Digest() (string, error) {
	l, err := i.layout()
	if err != nil {
		return "", err
	}
	return string(digestOf(l.manifest)), nil
}

// Write writes the image to w and returns its digest, as [Image.Digest] does.
// A description that is wrong, and a source file that cannot be read, are found
// before anything is written. A source file that changes meanwhile is an error
// that names it.
func (i Image) Write(w io.Writer) (string, error) {
	l, err := i.layout()
	if err != nil {
		return "", err
	}
	return string(digestOf(l.manifest)), l.write(w)
}

// WriteFile is Write to the file name, which appears when it is complete and
// replaces one that is there.
func (i Image) WriteFile(name string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.new")
	if err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	defer os.Remove(f.Name()) // gone under this name when all went well
	id, err := i.Write(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	return id, nil
}

func (i Image) layout() (layout, error) {
	if err := i.check(); err != nil {
		return layout{}, err
	}
	l := layout{created: time.Unix(0, 0).UTC(), names: i.Names}
	if !i.Created.IsZero() {
		l.created = i.Created.UTC().Truncate(time.Second)
	}
	config := configFile{Created: l.created, Platform: i.Platform, Config: i.Config, RootFS: rootFS{Type: "layers", DiffIDs: []digest{}}}
	m := manifest{SchemaVersion: 2, MediaType: typeManifest, Layers: []descriptor{}}
	for n, layer := range i.Layers {
		entries, err := layer.entries()
		if err != nil {
			return layout{}, fmt.Errorf("layer %d of image %s: %w", n+1, i.Names[0], err)
		}
		blob, err := measure(entries, layer.Gzip, l.created)
		if err != nil {
			return layout{}, fmt.Errorf("layer %d of image %s: %w", n+1, i.Names[0], err)
		}
		l.layers = append(l.layers, blob)
		m.Layers = append(m.Layers, descriptor{MediaType: blob.mediaType(), Digest: blob.digest, Size: blob.size})
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, blob.diffID)
		config.Past = append(config.Past, history{l.created})
	}
	l.config = encode(config)
	m.Config = descriptor{MediaType: typeConfig, Digest: digestOf(l.config), Size: int64(len(l.config))}
	l.manifest = encode(m)
	ix := index{SchemaVersion: 2, MediaType: typeIndex}
	for _, name := range i.Names {
		ix.Manifests = append(ix.Manifests, descriptor{
			MediaType: typeManifest, Digest: digestOf(l.manifest), Size: int64(len(l.manifest)), Platform: &i.Platform,
			Annotations: map[string]string{
				"io.containerd.image.name":          name,
				"org.opencontainers.image.ref.name": tag(name),
			},
		})
	}
	l.index = encode(ix)
	return l, nil
}

// encode returns v as JSON. The types of this package always have a form in it.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

func (l layout) write(w io.Writer) error {
	t := tar.NewWriter(w)
	begin := func(name string, size int64) error {
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: l.created})
	}
	put := func(name string, data []byte) error {
		if err := begin(name, int64(len(data))); err != nil {
			return err
		}
		_, err := t.Write(data)
		return err
	}
	docker := dockerManifest{Config: digestOf(l.config).path(), RepoTags: l.names}
	for _, blob := range l.layers {
		docker.Layers = append(docker.Layers, blob.digest.path())
	}
	for _, file := range []struct {
		name string
		data []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", l.index},
		{"manifest.json", encode([]dockerManifest{docker})},
		{digestOf(l.manifest).path(), l.manifest},
		{digestOf(l.config).path(), l.config},
	} {
		if err := put(file.name, file.data); err != nil {
			return err
		}
	}
	written := map[digest]bool{}
	for _, blob := range l.layers {
		if written[blob.digest] { // equal layers are one blob
			continue
		}
		written[blob.digest] = true
		if err := begin(blob.digest.path(), blob.size); err != nil {
			return err
		}
		if err := blob.write(t); err != nil {
			return err
		}
	}
	return t.Close()
}
