package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DefaultDir is where the lab lies when nothing else is said.
const DefaultDir = "/run/weft-lab"

// DirVariable is the environment variable that says where the lab lies.
const DirVariable = "WEFT_LAB_DIR"

// ErrNoLab says that there is no lab in a directory.
var ErrNoLab = errors.New("no lab is up")

// Elsewhere says how a lab is named that lies in another directory.
const Elsewhere = "export " + DirVariable + "=DIRECTORY names one that lies elsewhere"

// noLab is ErrNoLab of a directory, and says what to do.
func (d dir) noLab() error {
	return fmt.Errorf("%w in %s (start one with: weft lab up; %s)", ErrNoLab, d, Elsewhere)
}

// dir is a lab's directory. What lies in it:
//
//	lock                  held shared by what uses the lab, alone by what changes it
//	lab.json              the Options, written first and last (see Lab.complete)
//	ns/                   a mount of its own
//	ns/NAME.net .mnt      the namespaces of switch, controllers and nodes
//	etcd.sock etcd/       etcd's socket and data
//	pod.sock              tells the kubelet that there are other pods
//	daemons/NAME.json     the process record of switch, controllers, agents and name servers
//	daemons/NAME.log      its output
//	run/NODE              where the /run of a node that boots is put together
//	pods/NAMESPACE/POD/   pod.json, process.json, log, ended
type dir string

func (d dir) lockFile() string               { return filepath.Join(string(d), "lock") }
func (d dir) optionsFile() string            { return filepath.Join(string(d), "lab.json") }
func (d dir) namespaces() string             { return filepath.Join(string(d), "ns") }
func (d dir) network(name string) string     { return filepath.Join(string(d), "ns", name+".net") }
func (d dir) mounts(name string) string      { return filepath.Join(string(d), "ns", name+".mnt") }
func (d dir) etcdSocket() string             { return filepath.Join(string(d), "etcd.sock") }
func (d dir) kubeletSocket() string          { return filepath.Join(string(d), "pod.sock") }
func (d dir) etcdData() string               { return filepath.Join(string(d), "etcd") }
func (d dir) daemons() string                { return filepath.Join(string(d), "daemons") }
func (d dir) record(daemon string) string    { return filepath.Join(string(d), "daemons", daemon+".json") }
func (d dir) log(daemon string) string       { return filepath.Join(string(d), "daemons", daemon+".log") }
func (d dir) run(node string) string         { return filepath.Join(string(d), "run", node) }
func (d dir) pods() string                   { return filepath.Join(string(d), "pods") }
func (d dir) pod(namespace, n string) string { return filepath.Join(string(d), "pods", namespace, n) }

// sharing says who else may hold a lock.
type sharing int

const (
	alone    sharing = unix.LOCK_EX
	shared   sharing = unix.LOCK_SH
	aloneNow sharing = unix.LOCK_EX | unix.LOCK_NB // or errBusy
)

// errBusy says that somebody else holds a lock.
var errBusy = errors.New("somebody else holds the lock")

// lock takes the lab's lock, waiting for it, and makes the directory if it
// is not there and create says so. The kernel lets go of the lock of a
// process that dies.
func (d dir) lock(s sharing, create bool) (unlock func(), err error) {
	for {
		flags := os.O_RDWR
		if create {
			if err := os.MkdirAll(string(d), 0o755); err != nil {
				is, there := os.Lstat(string(d))
				if errors.Is(err, os.ErrExist) && (errors.Is(there, os.ErrNotExist) || there == nil && is.IsDir()) {
					continue // a Down came in between, and maybe an Up behind it
				}
				return nil, err
			}
			flags |= os.O_CREATE
		}
		f, err := os.OpenFile(d.lockFile(), flags, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			if create {
				continue // a Down came in between
			}
			return nil, d.noLab()
		}
		if err != nil {
			return nil, err
		}
		if err := flock(f, s); err != nil {
			f.Close()
			return nil, err
		}
		// A Down that we waited for has removed the file that we hold.
		mine, err1 := f.Stat()
		now, err2 := os.Stat(d.lockFile())
		if err1 == nil && err2 == nil && os.SameFile(mine, now) {
			return func() { f.Close() }, nil
		}
		f.Close()
	}
}

// lockDaemon makes sure that nobody else starts or stops a machine, and keeps
// the lab from being changed otherwise. Pods may come and go meanwhile: a
// runtime that waits for an agent must not keep the agent from being started.
func (d dir) lockDaemon(name string) (unlock func(), err error) {
	unlockDir, err := d.lock(shared, false)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(d.daemons(), name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		if err = flock(f, alone); err == nil {
			return func() { f.Close(); unlockDir() }, nil
		}
		f.Close()
	}
	unlockDir()
	return nil, err
}

// flock waits for a lock on an open file.
func flock(f *os.File, s sharing) error {
	for {
		err := unix.Flock(int(f.Fd()), int(s))
		if err == nil {
			return nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", f.Name(), errBusy)
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
