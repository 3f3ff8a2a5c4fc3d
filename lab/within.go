package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/process"
)

// mostRounds bounds how often endWithin looks again, as processes start others.
const mostRounds = 100

// endWithin ends all processes in the network namespaces that are mounted at some
// paths, whoever started them there, and returns when none is left. This process is
// not among them. Nothing need be mounted at a path.
func endWithin(paths ...string) error {
	spaces := make(map[namespaceID]bool)
	for _, path := range paths {
		if id, ok := namespaceAt(path); ok {
			spaces[id] = true
		}
	}
	if len(spaces) == 0 {
		return nil
	}
	for range mostRounds {
		found, err := within(spaces)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, p := range found {
			if err := p.Kill(); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("in the network namespaces of %s processes start others faster than they can be ended: end what starts them", strings.Join(paths, ", "))
}

// namespaceID tells one namespace of the machine from another.
type namespaceID struct{ device, inode uint64 }

// namespaceAt returns which namespace a path leads to, false where it leads to none.
func namespaceAt(path string) (namespaceID, bool) {
	var fs unix.Statfs_t
	var file unix.Stat_t
	if unix.Statfs(path, &fs) != nil || fs.Type != unix.NSFS_MAGIC || unix.Stat(path, &file) != nil {
		return namespaceID{}, false
	}
	return namespaceID{file.Dev, file.Ino}, true
}

// within returns the processes in some network namespaces.
func within(spaces map[namespaceID]bool) ([]process.ID, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []process.ID
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Its number may come to stand for another process meanwhile.
		p, err := process.Identify(pid)
		if err != nil {
			continue // it has ended
		}
		if id, ok := namespaceAt(filepath.Join("/proc", e.Name(), "ns/net")); ok && spaces[id] && p.Alive() {
			found = append(found, p)
		}
	}
	return found, nil
}

// endWithinAll ends all processes in the namespaces of the lab.
func (l *Lab) endWithinAll() error {
	paths, err := filepath.Glob(l.dir.network("*"))
	if err != nil {
		return err
	}
	return endWithin(paths...)
}
