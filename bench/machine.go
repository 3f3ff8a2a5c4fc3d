package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what kind of machine was measured, without what would tell one
// such machine from another.
type machine struct {
	Processors int
	Model      string
	Memory     uint64 // bytes
	Kernel, Go string
}

func (m machine) String() string {
	return fmt.Sprintf("%d processors (%s), %.0f GiB, Linux %s %s, %s", m.Processors, m.Model, float64(m.Memory)/(1<<30), m.Kernel, runtime.GOARCH, m.Go)
}

func thisMachine() (machine, error) {
	m := machine{Processors: runtime.NumCPU(), Go: runtime.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("uname: %w", err)
	}
	m.Kernel = kernelVersion(unix.ByteSliceToString(u.Release[:]))
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("sysinfo: %w", err)
	}
	m.Memory = info.Totalram * uint64(info.Unit)
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	m.Model = "model unknown"
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.Model = strings.TrimSpace(value)
			break
		}
	}
	return m, nil
}

// kernelVersion is a release without what its builder appended.
func kernelVersion(release string) string {
	var out []string
	for part := range strings.SplitSeq(release, ".") {
		digits := strings.TrimRight(part, "")
		if i := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
			digits = part[:i]
		}
		if _, err := strconv.Atoi(digits); err != nil {
			break
		}
		out = append(out, digits)
		if digits != part {
			break
		}
	}
	return strings.Join(out, ".")
}
