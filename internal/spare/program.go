package spare

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// unmapProgram takes the pages of the program's file out of the process's memory. Most
// of them were needed at the start only; those that are needed again come back, one
// fault for some of them, from where the kernel keeps files. What cannot be taken out
// stays, and nothing is lost by it.
func unmapProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/smaps") // proc_pid_smaps(5)
	if err != nil {
		return
	}
	var from, length uintptr
	for line := range strings.Lines(string(maps)) {
		var begin, end uintptr
		var mode string
		var changed int
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &mode); n == 3 {
			from, length = begin, 0
			if mode[1] != 'w' && strings.HasSuffix(line, " "+program+"\n") {
				length = end - begin
			}
		} else if n, _ := fmt.Sscanf(line, "Anonymous: %d kB", &changed); n == 1 && changed == 0 && length > 0 {
			// Nothing in it was ever written to, so the file has all of it.
			unix.Syscall(unix.SYS_MADVISE, from, length, unix.MADV_DONTNEED)
		}
	}
}
