package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
)

// What the agent and the node's name server have in common is in RunDir: RecordsName is the file
// in which the name server finds what it answers by, which the agent alone writes, and
// NameSocketName the socket at which it is asked whether it answers, which it makes itself. Each
// is in a directory of its own, so that the name server gets these two, the first to be read
// alone, and nothing else that is in RunDir.
const (
	RecordsName    = "dns/agent/records"
	NameSocketName = "dns/keeper/keeper.sock"
)

// NameDirs are the directories in RunDir in which these are, the inner ones first.
var NameDirs = []string{"dns/agent", "dns/keeper", "dns"}

// FormerRecordsName and FormerNameSocketName are where name servers of versions before have both. As
// one of them and an agent of this version, or the other way round, meet while a cluster is upgraded
// or goes back, an agent has each be found in both places. A socket in two places is one file with
// two names, since a name server sees no more of RunDir than its directories, and no other name
// leads it out of these.
const (
	FormerRecordsName    = "dns-records"
	FormerNameSocketName = "dns.sock"
)

// nameFiles are these files in a RunDir.
type nameFiles struct{ dir string }

func (f nameFiles) records() string { return filepath.Join(f.dir, RecordsName) }

// toldLast returns the addresses at which the name server was told last to be, by an agent of
// whichever version.
func (f nameFiles) toldLast() (at []netip.Addr, err error) {
	for _, path := range []string{f.records(), filepath.Join(f.dir, FormerRecordsName)} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		follower := journal.Follow(path, func(b journal.Batch) {
			if b.Settings != nil {
				at = b.Settings.Addresses
			}
		})
		follower.Look()
		return at, follower.State().Problem
	}
	return nil, nil
}

// leadToRecords has a name server of a version before find the records, once they are there. It
// hears of changes only when it looks anyway, which is every five seconds.
func (f nameFiles) leadToRecords() error {
	at := filepath.Join(f.dir, FormerRecordsName)
	if to, err := os.Readlink(at); err == nil && to == RecordsName {
		return nil
	}
	return put(at, func(beside string) error { return os.Symlink(RecordsName, beside) })
}

// ask asks the name server, and has one of a version before and one of this version find each
// other: that one serves, and the other can take over from it. An error that is fs.ErrNotExist
// means that the last one has ended, and was not killed.
func (f nameFiles) ask(ctx context.Context) (keeper.State, error) {
	at, before := filepath.Join(f.dir, NameSocketName), filepath.Join(f.dir, FormerNameSocketName)
	state, err := keeper.Ask(ctx, at)
	if one, other := socketAt(at), socketAt(before); one != nil && other != nil && os.SameFile(one, other) {
		return state, err
	}
	former, formerErr := keeper.Ask(ctx, before)
	switch {
	case formerErr == nil && former.Serving && !state.Serving:
		if linkErr := linkSocket(before, at); linkErr != nil {
			former.Problem = fmt.Sprintf("a new weft-dns cannot take over: %v", linkErr)
		}
		return former, nil
	case err == nil && state.Serving && !former.Serving:
		// What it serves it goes on serving, whether or not one of a version before could take over.
		_ = linkSocket(at, before)
	}
	if err != nil {
		err = errors.Join(err, formerErr)
	}
	return state, err
}

// socketAt returns the socket at a path, nil where there is none.
func socketAt(path string) os.FileInfo {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		return info
	}
	return nil
}

// linkSocket has a socket be found at another path as well, in the place of what is there.
func linkSocket(at, too string) error {
	if socketAt(at) == nil {
		return fmt.Errorf("%s is no socket any more", at)
	}
	if err := os.MkdirAll(filepath.Dir(too), 0o700); err != nil {
		return err
	}
	return put(too, func(beside string) error { return os.Link(at, beside) })
}

// put has something be made at a path, in the place of what is there.
func put(path string, made func(beside string) error) error {
	beside := path + ".link"
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := made(beside); err != nil {
		return err
	}
	return os.Rename(beside, path)
}
