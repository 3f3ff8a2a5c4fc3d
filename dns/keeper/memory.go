package keeper

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// memorySize is how much memory a server has for queries that it has read and not answered yet, in
// bytes. It takes as much as is used.
const memorySize = 4 << 20

// seals are those of the memory, whose size stays: who maps it never finds that there is less.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// newMemory returns memory that is there for as long as a process has its file.
func newMemory() (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("weft-dns", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("weft-dns", flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if err := f.Truncate(memorySize); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}

// inheritedMemory returns the memory that has the number of a file; nil if that is something else.
func inheritedMemory(fd uintptr) *os.File {
	has, err := unix.FcntlInt(fd, unix.F_GET_SEALS, 0)
	if err != nil || has&seals != seals {
		return nil
	}
	unix.CloseOnExec(int(fd))
	return os.NewFile(fd, "memory")
}
