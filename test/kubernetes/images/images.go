// Package images writes the container images that the test cluster runs, under
// the names that Kubernetes and its end-to-end tests ask for, on a machine that
// can pull none.
//
// An image is what its users in the sig-network specs need of it, made from the
// programs of the cluster (built from the projects' own Go modules) and from
// Debian's packages. So it differs from the image that has the name elsewhere:
//
//   - agnhost is Debian's C library and tools rather than Alpine's, with bash as
//     /bin/sh (busybox as a shell prefers its own nc to the one that the specs
//     mean) and the cluster's release of CoreDNS; it lacks the contents of the
//     registry that fake-registry-server serves, which only sig-node asks for;
//   - jessie-dnsutils is agnhost: the specs want another C library's resolver
//     than Alpine's, with dig and getent, and have it there;
//   - busybox, nginx and distroless-iptables have Debian's releases of these
//     programs, not those of their tags, and GNU's wget;
//   - pause is a program of Weft's.
//
// [Missing] lists the images that could not be had. [Write] is all there is to
// call; the command in write does so for a Makefile.
package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/weftnet/weft/internal/oci"
)

// Unavailable is an image that Write does not write.
type Unavailable struct {
	Image string // the reference that is asked for
	Specs string // the specs that need it
	Why   string
}

// Missing are the images that specs of sig-network in Kubernetes v1.35 and its
// manifests name and that Write does not write.
var Missing = []Unavailable{
	{
		Image: "registry.k8s.io/ingress-nginx/controller:v0.46.0",
		Specs: "Ingress on nginx",
		Why:   "its nginx is built with modules of its own, which no Go module and no Debian package has",
	},
	{
		Image: "registry.k8s.io/e2e-test-images/agnhost:2.54",
		Specs: "Ingress and network endpoint groups on Google's cloud",
		Why:   "only release 2.59 is in the Kubernetes sources that are built; and the specs need that cloud",
	},
	{
		Image: "invalid.registry.k8s.io/invalid/alpine:3.1",
		Specs: "those in which pulling an image must fail",
		Why:   "it must not exist",
	},
}

// Write writes the images that are not in dir yet, or that other programs were
// in, and returns the paths of all of them: tar archives for
// `ctr --namespace k8s.io images import`. bin is the directory with agnhost,
// coredns and nginx, which test/kubernetes/programs/build and
// test/kubernetes/deps.sh fill, and in which the Go programs that only images
// have are built with the go command. The working directory must be in Weft's
// source tree.
func Write(ctx context.Context, bin, dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("directory for the images: %w", err)
	}
	m := material{bin: bin}
	var err error
	if m.kubernetes, err = buildPrograms(ctx, bin); err != nil {
		return nil, err
	}
	if m.applets, err = applets(ctx); err != nil {
		return nil, err
	}
	var paths []string
	for _, describe := range all {
		name, image, err := describe(m)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		image.Platform = oci.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}
		path := filepath.Join(dir, name+".tar")
		if err := writeNew(image, path); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// writeNew writes the image unless the file at path is that image, which a file
// beside it says.
func writeNew(image oci.Image, path string) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	mark, markFile := digest+" "+strings.Join(image.Names, " ")+"\n", path+".from"
	if was, err := os.ReadFile(markFile); err == nil && string(was) == mark {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	// The mark never stands beside another image than its own.
	if err := os.Remove(markFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("image %s: %w", path, err)
	}
	if _, err := image.WriteFile(path); err != nil {
		return err
	}
	if err := os.WriteFile(markFile, []byte(mark), 0o644); err != nil {
		return fmt.Errorf("image %s: %w", path, err)
	}
	return nil
}
