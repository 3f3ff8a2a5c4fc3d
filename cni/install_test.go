package cni

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// script writes a program that says which versions of CNI it speaks, as all
// plug-ins do, and nothing else.
func script(t *testing.T, path string, versions string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[%s]}'\n", versions)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// tree lists the files below a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			files = append(files, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

func newInstall(t *testing.T) (i Install, host string) {
	host = t.TempDir()
	return Install{ConfFile: filepath.Join(host, "net.d", "10-weft.conflist"), BinDir: filepath.Join(host, "bin"),
		Shim: filepath.Join(shimDir, ShimName)}, host
}

func write(t *testing.T, i Install) (conf string) {
	t.Helper()
	if err := i.Write("/run/other.sock"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(i.ConfFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(data)), "")
}

func TestInstall(t *testing.T) {
	i, host := newInstall(t)
	want := `{"cniVersion":"1.1.0","name":"weft","plugins":[{"capabilities":{"portMappings":true},"socket":"/run/other.sock","type":"weft-cni"}]}`
	for range 2 {
		if conf := write(t, i); conf != want {
			t.Errorf("got %s", conf)
		}
	}
	info, err := os.Stat(filepath.Join(i.BinDir, ShimName))
	if err != nil || info.Mode() != 0o755 {
		t.Error(info, err)
	}
	if got := tree(t, host); !slices.Equal(got, []string{"bin/weft-cni", "net.d/10-weft.conflist"}) {
		t.Errorf("there are %v", got)
	}
}

func TestInstallUsesTheHostsPlugins(t *testing.T) {
	i, host := newInstall(t)
	script(t, filepath.Join(i.BinDir, "bandwidth"), `"0.4.0","1.0.0"`)
	want := `{"cniVersion":"1.0.0","name":"weft","plugins":[{"capabilities":{"portMappings":true},"socket":"/run/other.sock","type":"weft-cni"},` +
		`{"capabilities":{"bandwidth":true},"type":"bandwidth"}]}`
	if conf := write(t, i); conf != want {
		t.Errorf("got %s", conf)
	}
	if removed, err := i.Remove(); err != nil || len(removed) != 2 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if got := tree(t, host); !slices.Equal(got, []string{"bin/bandwidth"}) {
		t.Errorf("of the host's own, this is left: %v", got)
	}
}

func TestInstallBringsPluginsAlong(t *testing.T) {
	i, host := newInstall(t)
	i.Plugins = t.TempDir()
	script(t, filepath.Join(i.Plugins, "bandwidth"), `"1.0.0","1.1.0"`)
	script(t, filepath.Join(i.BinDir, "bandwidth"), `"0.4.0"`) // the distribution's
	// A write that was killed in the middle, and what an earlier version brought along.
	for _, name := range []string{tempPrefix + "123", "weft-portmap"} {
		if err := os.WriteFile(filepath.Join(i.BinDir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := `{"cniVersion":"1.1.0","name":"weft","plugins":[{"capabilities":{"portMappings":true},"socket":"/run/other.sock","type":"weft-cni"},` +
		`{"capabilities":{"bandwidth":true},"type":"weft-bandwidth"}]}`
	if conf := write(t, i); conf != want {
		t.Errorf("got %s", conf)
	}
	theirs, err := os.ReadFile(filepath.Join(i.BinDir, "bandwidth"))
	if err != nil || !strings.Contains(string(theirs), "0.4.0") {
		t.Errorf("the distribution's bandwidth was touched: %s, %v", theirs, err)
	}
	removed, err := i.Remove()
	if err != nil {
		t.Error(err)
	}
	for n, path := range removed {
		removed[n], _ = filepath.Rel(host, path)
	}
	if want := []string{"net.d/10-weft.conflist", "bin/weft-cni", "bin/weft-portmap", "bin/weft-bandwidth", "bin/.weft-123"}; !slices.Equal(removed, want) {
		t.Errorf("removed %v, want %v", removed, want)
	}
	if got := tree(t, host); !slices.Equal(got, []string{"bin/bandwidth"}) {
		t.Errorf("there are %v", got)
	}
	if removed, err := i.Remove(); err != nil || len(removed) != 0 {
		t.Errorf("removing again removed %v, %v", removed, err)
	}
}

// TestInstallOverPortmap has an agent come to a node on which one before left ports to portmap.
func TestInstallOverPortmap(t *testing.T) {
	i, _ := newInstall(t)
	before := `{"cniVersion":"1.0.0","name":"weft","plugins":[{"type":"weft-cni","capabilities":{"portMappings":true}},
		{"type":"weft-portmap","backend":"nftables","capabilities":{"portMappings":true}},{"type":"weft-bandwidth","capabilities":{"bandwidth":true}}]}`
	if err := os.MkdirAll(filepath.Dir(i.ConfFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(i.ConfFile, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	first := `{"capabilities":{"portMappings":true},"socket":"/run/other.sock","type":"weft-cni"}`
	i.Translated = true
	for range 2 {
		want := `{"cniVersion":"1.0.0","name":"weft","plugins":[` + first + `,{"backend":"nftables","type":"weft-portmap"}]}`
		if conf := write(t, i); conf != want {
			t.Errorf("while its pods run the configuration is %s", conf)
		}
	}
	i.Translated = false
	if conf, want := write(t, i), `{"cniVersion":"1.1.0","name":"weft","plugins":[`+first+`]}`; conf != want {
		t.Errorf("when they are gone it is %s", conf)
	}
}

func TestRemoveLeavesWhatIsAnothers(t *testing.T) {
	i, host := newInstall(t)
	write(t, i)
	if err := os.WriteFile(i.ConfFile, []byte(`{"name":"other","plugins":[{"type":"bridge"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if removed, err := i.Remove(); err == nil || len(removed) != 0 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if got := tree(t, host); len(got) != 2 {
		t.Errorf("there are %v", got)
	}
	// Nor is a program removed that was never copied.
	i = Install{BinDir: shimDir, Shim: filepath.Join(shimDir, ShimName)}
	if removed, err := i.Remove(); err != nil || len(removed) != 0 {
		t.Errorf("removed %v, %v", removed, err)
	}
}
