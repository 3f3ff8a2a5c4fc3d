package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/oci"
)

// program builds a Go program that does nothing, and returns its path.
func program(t *testing.T, env []string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module nothing\n\ngo 1.26\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", append([]string{"build", "-o", "program"}, flags...)...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0", "GOOS=linux"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
	return filepath.Join(dir, "program")
}

// foreign is an architecture that this machine is not of.
func foreign() string {
	if runtime.GOARCH == "arm64" {
		return "amd64"
	}
	return "arm64"
}

// put makes a copy of the program, under each of the names, in a new directory.
func put(t *testing.T, program string, names []string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.Link(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func replace(t *testing.T, file, with string) {
	t.Helper()
	if err := errors.Join(os.Remove(file), os.Link(with, file)); err != nil {
		t.Fatal(err)
	}
}

func TestTheProgramsLieBesideEachOtherInTheRoot(t *testing.T) {
	nothing := program(t, []string{"GOARCH=" + foreign()}, "-trimpath")
	image, err := describe(put(t, nothing, programs), "docker.io/weftnet/weft:v1")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, layer := range image.Layers {
		for _, f := range layer.Files {
			files = append(files, f.Path)
		}
	}
	slices.Sort(files)
	want := "/etc/passwd /weft /weft-agent /weft-cni /weft-controller /weft-dns /weft-dns-server"
	if got := strings.Join(files, " "); got != want {
		t.Errorf("the image has %s; it should have %s", got, want)
	}
	if want := (oci.Platform{OS: "linux", Architecture: foreign()}); image.Platform != want {
		t.Errorf("the image of programs for %v is for %v", want, image.Platform)
	}
	if got := image.Config.Labels["org.opencontainers.image.version"]; got != "v1" {
		t.Errorf("the image of v1 is labelled %q", got)
	}
	if _, err := image.Digest(); err != nil {
		t.Error(err)
	}
}

func TestProgramsThatDoNotBelongInTheImage(t *testing.T) {
	nothing := program(t, nil, "-trimpath")
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ program, complaint string }{
		"where it was built":  {program(t, nil), `was built with -trimpath=""`},
		"another platform":    {program(t, []string{"GOARCH=" + foreign()}, "-trimpath"), "is for linux/" + foreign() + " and"},
		"not built by Go":     {script, "make image builds the programs"},
		"linked to libraries": {program(t, []string{"CGO_ENABLED=1"}, "-trimpath"), `was built with CGO_ENABLED="1"`},
	} {
		dir := put(t, nothing, programs)
		file := filepath.Join(dir, "weft-agent")
		replace(t, file, c.program)
		_, err := describe(dir, "docker.io/weftnet/weft:v1")
		if err == nil || !strings.Contains(err.Error(), c.complaint) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: the error should name %s and say %q; it is: %v", what, file, c.complaint, err)
		}
	}
	dir := put(t, nothing, programs[1:])
	if _, err := describe(dir, "docker.io/weftnet/weft:v1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without %s the error is %v", programs[0], err)
	}
}

func TestSourceDate(t *testing.T) {
	for value, want := range map[string]int64{"": 0, "0": 0, "1700000000": 1700000000} {
		if got, err := sourceDate(value); err != nil || !got.Equal(time.Unix(want, 0)) {
			t.Errorf("SOURCE_DATE_EPOCH=%q is %v, %v", value, got, err)
		}
	}
	for _, value := range []string{"-1", "yesterday", "1e9", " 1"} {
		if _, err := sourceDate(value); err == nil || !strings.Contains(err.Error(), value) {
			t.Errorf("SOURCE_DATE_EPOCH=%q gives the error %v", value, err)
		}
	}
}
