package cni

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
	want := `{"cniVersion":"1.1.0","name":"weft","plugins":[{"capabilities":{"bandwidth":true,"portMappings":true},"socket":"/run/other.sock","type":"weft-cni"}]}`
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

// before is what an agent wrote that left ports and limits to other plug-ins.
const before = `{"cniVersion":"1.0.0","name":"weft","plugins":[{"type":"weft-cni","capabilities":{"portMappings":true}},
	{"type":"weft-portmap","backend":"nftables","capabilities":{"portMappings":true}},{"type":"other"},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`

// TestInstallOver has an agent come to a node on which there was one before.
func TestInstallOver(t *testing.T) {
	i, host := newInstall(t)
	for path, content := range map[string]string{
		i.ConfFile: before,
		// What it brought along, and what a write left that was killed in the middle.
		filepath.Join(i.BinDir, "weft-portmap"):     "",
		filepath.Join(i.BinDir, "weft-bandwidth"):   "",
		filepath.Join(i.BinDir, "bandwidth"):        "the distribution's",
		filepath.Join(i.BinDir, tempPrefix+"12345"): "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	conf := func(more string) string {
		return `{"cniVersion":"1.1.0","name":"weft","plugins":[{"capabilities":{"bandwidth":true,"portMappings":true},` + more + `"socket":"/run/other.sock","type":"weft-cni"}]}`
	}
	i.Followed = true
	for range 2 {
		want := conf(`"predecessors":[` +
			`{"cniVersion":"1.0.0","name":"weft","type":"weft-portmap","backend":"nftables","runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1,"protocol":"tcp"}]}},` +
			`{"cniVersion":"1.0.0","name":"weft","type":"bandwidth"}],`)
		if got := write(t, i); got != want {
			t.Errorf("while its pods run the configuration is\n%s, and not\n%s", got, want)
		}
	}
	i.Followed = false
	if got, want := write(t, i), conf(""); got != want {
		t.Errorf("when they are gone it is %s", got)
	}
	i.Followed = true
	if got, want := write(t, i), conf(""); got != want {
		t.Errorf("where nothing is left it is %s", got)
	}
	removed, err := i.Remove()
	if err != nil {
		t.Error(err)
	}
	for n, path := range removed {
		removed[n], _ = filepath.Rel(host, path)
	}
	if want := []string{"net.d/10-weft.conflist", "bin/weft-cni", "bin/weft-portmap", "bin/weft-bandwidth", "bin/.weft-12345"}; !slices.Equal(removed, want) {
		t.Errorf("removed %v, want %v", removed, want)
	}
	if got := tree(t, host); !slices.Equal(got, []string{"bin/bandwidth"}) {
		t.Errorf("there are %v", got)
	}
	if removed, err := i.Remove(); err != nil || len(removed) != 0 {
		t.Errorf("removing again removed %v, %v", removed, err)
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
