package keeper_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/unanswered"
)

// count says which server this is of those that have had a memory.
func count(memory *os.File) string {
	if memory == nil {
		return "there is no memory"
	}
	number := make([]byte, 1)
	if _, err := memory.ReadAt(number, 0); err != nil {
		panic(err)
	}
	number[0]++
	if _, err := memory.WriteAt(number, 0); err != nil {
		panic(err)
	}
	if memory.Truncate(0) == nil {
		panic("the memory has another size")
	}
	if info, err := memory.Stat(); err != nil || info.Size() != unanswered.Size {
		panic("the memory is not as large as it should be")
	}
	return fmt.Sprintf("server %d has the memory", number[0])
}

// TestMemory kills servers: the next one has the memory of the one before. A keeper that takes over has
// one of its own, as both servers are there for a while.
func TestMemory(t *testing.T) {
	s := socket(t)
	run(t, options(s, "counts", "127.0.0.1"))
	problem(t, s, "server 1 has the memory")
	state, err := keeper.Ask(t.Context(), s)
	if err != nil || len(state.Addresses) != 1 {
		t.Fatalf("%+v, %v", state, err)
	}
	_, pid := who(t, state.Addresses[0])
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	problem(t, s, "server 2 has the memory")
	begin(t, s, "counts-next", "127.0.0.1")
	problem(t, s, "server 1 has the memory")
}

// TestInherited has files behind the conversation, of which sealed memory alone is taken for the
// server's. A keeper of an older version has none.
func TestInherited(t *testing.T) {
	const at = 100
	sealed := func(fd, seals int) int {
		t.Helper()
		if err := unix.Ftruncate(fd, unanswered.Size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	memfd := func() int {
		t.Helper()
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	for name, c := range map[string]struct {
		beside func() int
		want   bool
	}{
		"nothing":       {func() int { return -1 }, false},
		"an event file": {func() int { fd, _ := unix.Eventfd(0, unix.EFD_CLOEXEC); return fd }, false},
		"memory":        {memfd, false},
		"half sealed":   {func() int { return sealed(memfd(), unix.F_SEAL_GROW) }, false},
		"sealed":        {func() int { return sealed(memfd(), unix.F_SEAL_GROW|unix.F_SEAL_SHRINK) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fds[0])
			beside := c.beside()
			for i, fd := range []int{fds[1], beside} {
				if fd < 0 {
					continue
				}
				if err := unix.Dup3(fd, at+i, unix.O_CLOEXEC); err != nil {
					t.Fatal(err)
				}
				unix.Close(fd)
			}
			line, err := keeper.Inherited(at)
			if err != nil {
				t.Fatal(err)
			}
			defer line.Close()
			if got := line.Memory != nil; got != c.want {
				t.Errorf("there is memory: %v, and it should be %v", got, c.want)
			}
			if line.Memory == nil {
				if beside >= 0 {
					unix.Close(at + 1)
				}
				return
			}
			defer line.Memory.Close()
			if m, _, err := unanswered.Open(line.Memory); err != nil || m == nil {
				t.Errorf("it is not of use: %v", err)
			}
		})
	}
}
