package attack

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// privileges are what a process may do beyond its own: its user, and exactly
// these capabilities.
type privileges struct {
	uid          int
	capabilities []int
}

// nobody is a user without any right.
const nobody = 65534

// all are the privileges of a machine's owner.
var all = privileges{capabilities: nil, uid: -1}

func (a attacker) privileges() privileges {
	switch a {
	case podWithRaw:
		return privileges{0, []int{unix.CAP_NET_RAW}}
	case podWithAdmin:
		return privileges{0, []int{unix.CAP_NET_RAW, unix.CAP_NET_ADMIN}}
	case podWithNothing, nodeUser:
		return privileges{nobody, nil}
	}
	return all
}

// String is the form of the arguments of the program "hand".
func (p privileges) String() string {
	text := strconv.Itoa(p.uid)
	for _, c := range p.capabilities {
		text += "," + strconv.Itoa(c)
	}
	return text
}

func parsePrivileges(text string) (p privileges, err error) {
	for i, field := range strings.Split(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil {
			return p, err
		}
		if i == 0 {
			p.uid = n
		} else {
			p.capabilities = append(p.capabilities, n)
		}
	}
	return p, nil
}

// mask is the capabilities as /proc/PID/status shows them.
func (p privileges) mask() string {
	var m uint64
	for _, c := range p.capabilities {
		m |= 1 << c
	}
	return fmt.Sprintf("%016x", m)
}

// become gives up all that is not among the privileges, for good, and executes
// a program: the bounding set goes, too, so that nothing brings them back.
func (p privileges) become(args ...string) error {
	// The kernel keeps these of a thread; the one that executes a program is
	// the one that remains.
	goruntime.LockOSThread()
	if p.uid >= 0 {
		if err := p.drop(); err != nil {
			return err
		}
	}
	return &os.PathError{Op: "execute", Path: self, Err: unix.Exec(self, append([]string{self}, args...), os.Environ())}
}

func (p privileges) drop() error {
	var set [2]unix.CapUserData
	for _, c := range p.capabilities {
		set[c/32].Permitted |= 1 << (c % 32)
	}
	for i := range set {
		set[i].Effective, set[i].Inheritable = set[i].Permitted, set[i].Permitted
	}
	for c := range 64 {
		if set[c/32].Permitted&(1<<(c%32)) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break // the kernel knows no more of them
		} else if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("take no new privileges: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	// Not through package syscall, which would do it to all threads.
	id := uintptr(p.uid)
	for _, call := range []struct {
		number uintptr
		args   [3]uintptr
	}{{unix.SYS_SETGROUPS, [3]uintptr{}}, {unix.SYS_SETRESGID, [3]uintptr{id, id, id}}, {unix.SYS_SETRESUID, [3]uintptr{id, id, id}}} {
		if _, _, errno := unix.RawSyscall(call.number, call.args[0], call.args[1], call.args[2]); errno != 0 {
			return fmt.Errorf("become user %d: %w", p.uid, errno)
		}
	}
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &set[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	for _, c := range p.capabilities {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("keep capability %d over exec: %w", c, err)
		}
	}
	return nil
}

// own are the privileges that this process has, as the kernel says: the user,
// and the effective and bounding sets.
func own() (string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.TrimSpace(value)
	}
	return fmt.Sprintf("uid %d effective %s bounding %s", os.Getuid(), fields["CapEff"], fields["CapBnd"]), nil
}

// want is what own must say.
func (p privileges) want() string {
	return fmt.Sprintf("uid %d effective %s bounding %s", p.uid, p.mask(), p.mask())
}
