package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// record is a process by what tells it from another that gets its number later.
type record struct {
	PID int
	// Started is when, in clock ticks since the machine booted
	// (proc_pid_stat(5), field 22), and Boot which boot that was.
	Started uint64
	Boot    string
}

// recordOf makes the record of a process that runs.
func recordOf(pid int) (record, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return record{}, fmt.Errorf("process %d has ended", pid)
	}
	// The program's name, in parentheses, may hold blanks and parentheses.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return record{}, fmt.Errorf("process %d has ended", pid)
	}
	started, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return record{}, err
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return record{pid, started, strings.TrimSpace(string(id))}, err
}

func (r record) alive() bool {
	if r.PID == 0 {
		return false
	}
	now, err := recordOf(r.PID)
	return err == nil && now == r
}

// kill ends the process and returns when it has gone.
func (r record) kill() error {
	if r.PID == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", r.PID, err)
	}
	defer unix.Close(fd)
	if !r.alive() { // what the descriptor stands for is another, or has ended
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", r.PID, err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// writeJSON replaces a file at once, so that nobody reads half of it.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// tail returns the last lines of a log for an error message.
func tail(path string) string {
	b, err := os.ReadFile(path)
	b = bytes.TrimSpace(b)
	if err != nil || len(b) == 0 {
		return ""
	}
	lines := bytes.Split(b, []byte("\n"))
	lines = lines[max(0, len(lines)-8):]
	return fmt.Sprintf("\n  the end of %s:\n    %s", path, bytes.Join(lines, []byte("\n    ")))
}
