package node

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weftnet/weft/agent"
)

// TestNamesLeft: of a name server that runs still nothing is taken away but what an agent has put
// there.
func TestNamesLeft(t *testing.T) {
	listen := func(t *testing.T, dir, name string) {
		t.Helper()
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	for what, test := range map[string]struct {
		make func(t *testing.T, dir string)
		want []string
		dirs bool
	}{
		"no name server": {func(*testing.T, string) {}, []string{agent.NameSocketName, agent.FormerNameSocketName}, true},
		"one runs, and has another name for ones of a version before": {func(t *testing.T, dir string) {
			listen(t, dir, agent.NameSocketName)
			if err := os.Link(filepath.Join(dir, agent.NameSocketName), filepath.Join(dir, agent.FormerNameSocketName)); err != nil {
				t.Fatal(err)
			}
		}, []string{agent.FormerNameSocketName}, false},
		"one of a version before runs": {func(t *testing.T, dir string) { listen(t, dir, agent.FormerNameSocketName) }, []string{agent.NameSocketName}, false},
		"both run": {func(t *testing.T, dir string) {
			listen(t, dir, agent.NameSocketName)
			listen(t, dir, agent.FormerNameSocketName)
		}, nil, false},
	} {
		t.Run(what, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "weft-names-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			for _, d := range agent.NameDirs {
				if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
					t.Fatal(err)
				}
			}
			test.make(t, dir)
			files, dirs := namesLeft(dir)
			want := []string{agent.RecordsName + "*", agent.FormerRecordsName + "*"}
			for _, name := range test.want {
				want = append(want, name+"*")
			}
			if !slices.Equal(files, want) || (len(dirs) > 0) != test.dirs {
				t.Errorf("it takes away %q and %q, and should %q", files, dirs, want)
			}
		})
	}
}
