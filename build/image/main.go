// Command image writes Weft's container image, without a container engine.
//
//	image -version VERSION [-name NAME] [-o FILE] DIRECTORY
//
// DIRECTORY holds Weft's programs, as `make image` builds them. The image has them side by
// side in its root, because weft-agent looks beside itself for what it installs
// on the node, and nothing else but a user database: it is run as any user, with
// a read-only root. Its time is SOURCE_DATE_EPOCH (seconds since 1970, 0 if
// unset), so the same programs give the same image, byte for byte.
//
// Name, digest and sizes are printed.
package main

import (
	"debug/buildinfo"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/oci"
)

// programs are those of the image.
var programs = []string{"weft", "weft-agent", "weft-cni", "weft-controller", "weft-dns", "weft-dns-server"}

// passwd names the users of the DaemonSet and of the Deployment.
const passwd = "root:x:0:0:root:/:/weft\nnobody:x:65534:65534:nobody:/:/weft\n"

func main() {
	version := flag.String("version", "", "`VERSION` of Weft, the tag of the image")
	name := flag.String("name", "docker.io/weftnet/weft", "`NAME` of the image with its registry, without a tag")
	out := flag.String("o", "bin/weft-image.tar", "`FILE` to write")
	flag.Parse()
	if flag.NArg() != 1 || *version == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *name, *version, *out); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(dir, name, version, out string) error {
	created, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	image, err := describe(dir, name+":"+version)
	if err != nil {
		return err
	}
	image.Created = created
	digest, err := image.WriteFile(out)
	if err != nil {
		return err
	}
	fmt.Println(image.Names[0])
	fmt.Println(digest)
	files := []string{out}
	for _, layer := range image.Layers {
		for _, f := range layer.Files {
			if f.Source != "" {
				files = append(files, f.Source)
			}
		}
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		fmt.Printf("%6.1f MB  %s\n", float64(info.Size())/1e6, file)
	}
	return nil
}

// sourceDate reads the value of SOURCE_DATE_EPOCH.
func sourceDate(value string) (time.Time, error) {
	if value == "" {
		return time.Unix(0, 0), nil
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q; it must be a number of seconds since 1970", value)
	}
	return time.Unix(seconds, 0), nil
}

// describe returns the image of Weft's programs in dir. Its label of the version is the tag.
func describe(dir, name string) (oci.Image, error) {
	image := oci.Image{
		Names: []string{name},
		// With / in the PATH, kubectl exec finds weft by its name.
		Config: oci.Config{Entrypoint: []string{"/weft"}, Env: []string{"PATH=/"}, WorkingDir: "/", Labels: map[string]string{
			"org.opencontainers.image.title":    "Weft",
			"org.opencontainers.image.version":  name[strings.LastIndexByte(name, ':')+1:],
			"org.opencontainers.image.licenses": "Apache-2.0",
		}},
	}
	first, layer := "", oci.Layer{Gzip: true}
	for _, program := range programs {
		file := filepath.Join(dir, program)
		platform, err := platformOf(file)
		if err != nil {
			return oci.Image{}, err
		}
		if first == "" {
			first, image.Platform = file, platform
		} else if image.Platform != platform {
			return oci.Image{}, fmt.Errorf("%s is for %s/%s and %s for %s/%s: build them together",
				file, platform.OS, platform.Architecture, first, image.Platform.OS, image.Platform.Architecture)
		}
		layer.Files = append(layer.Files, oci.File{Path: "/" + program, Mode: 0o755, Source: file})
	}
	layer.Files = append(layer.Files, oci.File{Path: "/etc/passwd", Mode: 0o644, Data: []byte(passwd)})
	image.Layers = []oci.Layer{layer}
	return image, nil
}

// platformOf returns what the Go program in file runs on. A program that could
// not run in an image without libraries is refused, and so is one whose bytes
// depend on where it was built.
func platformOf(file string) (oci.Platform, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return oci.Platform{}, fmt.Errorf("%w: make image builds the programs", err)
	}
	for _, want := range []debug.BuildSetting{{Key: "CGO_ENABLED", Value: "0"}, {Key: "-trimpath", Value: "true"}} {
		if got := setting(info, want.Key); got != want.Value {
			return oci.Platform{}, fmt.Errorf("%s was built with %s=%q; the image needs %q", file, want.Key, got, want.Value)
		}
	}
	return oci.Platform{OS: setting(info, "GOOS"), Architecture: setting(info, "GOARCH")}, nil
}

func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
