// Package process names processes so that they can be found again, and ended,
// by a program that did not start them: by number, start time and boot. A
// number alone comes to stand for another process sooner or later, which must
// not be ended in the first one's place. A child it can also pause.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ID names one process of this machine for good. It can be compared with ==
// and kept as JSON. The zero ID names none.
type ID struct {
	// PID is its number in the PID namespace of who identified it.
	PID int `json:"pid"`
	// Started is when, in clock ticks since the machine booted
	// (proc_pid_stat(5), field 22), and Boot which boot that was
	// (random(4), boot_id).
	Started uint64 `json:"started"`
	Boot    string `json:"boot"`
}

// Identify returns the ID of the process that has a number now. It is an error
// if there is none; one that has ended and was not waited for yet counts as
// none.
func Identify(pid int) (ID, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ID{}, fmt.Errorf("process %d has ended", pid)
	}
	// The program's name, in parentheses, may hold blanks and parentheses.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ID{}, fmt.Errorf("process %d has ended", pid)
	}
	started, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return ID{}, fmt.Errorf("start time of process %d: %w", pid, err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, err
	}
	return ID{pid, started, strings.TrimSpace(string(boot))}, nil
}

// Alive reports whether the process runs.
func (p ID) Alive() bool {
	if p.PID == 0 {
		return false
	}
	now, err := Identify(p.PID)
	return err == nil && now == p
}

// Kill ends the process by SIGKILL and returns when it has gone. It is no
// error if that was so before.
func (p ID) Kill() error {
	if p.PID == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Alive() { // what the descriptor stands for is another, or has ended
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// tailLines is how many lines Tail returns at most.
const tailLines = 8

// Tail returns the last lines of a process's log, made to follow an error
// message; nothing if there are none.
func Tail(log string) string {
	b, err := os.ReadFile(log)
	b = bytes.TrimSpace(b)
	if err != nil || len(b) == 0 {
		return ""
	}
	lines := bytes.Split(b, []byte("\n"))
	lines = lines[max(0, len(lines)-tailLines):]
	return fmt.Sprintf("\n  the end of %s:\n    %s", log, bytes.Join(lines, []byte("\n    ")))
}
