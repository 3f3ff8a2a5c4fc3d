package unanswered

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// long is how long to wait for what should happen.
const long = time.Minute

// As another process than the test this is a server that answers what it is asked.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		if err := serve(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// sockets returns a server's and a client's, on the loopback.
func sockets(t interface {
	Fatal(...any)
	Cleanup(func())
}, at string) (server, client *net.UDPConn) {
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(at)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	client, err = net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return server, client
}

func where(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// read reads a query, and holds it.
func read(r *Reader) (Query, error) {
	if _, err := r.Read(); err != nil {
		return Query{}, err
	}
	return r.Hold(), nil
}

// TestHeld has queries come, be begun and be freed, and looks after each step at what another process
// would find if this one ended there: those queries that are not freed, in the order in which they
// were read. So it is also where a query is read and not yet copied, or copied and in both places.
func TestHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		server, client := sockets(t, rapid.SampledFrom([]string{"127.0.0.1", "::1"}).Draw(t, "at"))
		memory := make([]byte, size)
		m, _, err := open(memory, nil)
		if err != nil {
			t.Fatal(err)
		}
		const most = 2049
		r, err := m.Reader(server, where(server), most)
		if err != nil {
			t.Fatal(err)
		}
		type one struct {
			Query
			data  []byte
			begun int
		}
		var there []one
		left := func(more ...one) {
			t.Helper()
			_, all, err := open(slices.Clone(memory), whole(memory))
			if err != nil {
				t.Fatal(err)
			}
			var want []one
			for _, q := range slices.Concat(there, more) {
				if q.m != nil {
					want = append(want, q)
				}
			}
			if len(all) != len(want) {
				t.Fatalf("%d queries are left, and there are %d", len(all), len(want))
			}
			for i, q := range all {
				if !bytes.Equal(q.Data, want[i].data) || q.At != where(server) || q.From != where(client) || q.Begun != want[i].begun {
					t.Fatalf("%s to %s (begun %d times) is %.20q, and it should be %.20q (begun %d times)", q.From, q.At, q.Begun, q.Data, want[i].data, want[i].begun)
				}
				if age := time.Since(q.Read); age < 0 || age > long {
					t.Fatalf("it was read %s ago", age)
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"read", "read", "begin", "free"}).Draw(t, "step") {
			case "read":
				length := rapid.SampledFrom([]int{0, 1, 40, slotRoom, slotRoom + 1, most, most + 1}).Draw(t, "length")
				data := bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(t, "byte"))}, length)
				if _, err := client.Write(data); err != nil {
					t.Fatal(err)
				}
				data = data[:min(length, most)]
				if from, err := r.Read(); err != nil || from != where(client) {
					t.Fatal(from, err)
				}
				between := one{data: data, Query: Query{Held: Held{m: m}}}
				if length == 0 {
					between.m = nil
				}
				left(between)
				if rapid.Bool().Draw(t, "dropped") {
					server.SetReadDeadline(time.Unix(1, 0))
					if _, err := r.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Fatal(err)
					}
					server.SetReadDeadline(time.Time{})
					left()
					continue
				}
				page := r.page
				q := r.Hold()
				if !bytes.Equal(q.Data, data) || q.From != where(client) {
					t.Fatalf("%s says %.20q, and it should be %.20q", q.From, q.Data, data)
				}
				there = append(there, one{q, data, 0})
				if q.m != nil && q.slot >= pages {
					order.PutUint32(page[messageAt+lengthIn:], uint32(len(data)))
					left()
					order.PutUint32(page[messageAt+lengthIn:], 0)
				}
			case "begin":
				if len(there) > 0 {
					q := &there[rapid.IntRange(0, len(there)-1).Draw(t, "which")]
					q.Begin()
					q.begun++
				}
			case "free":
				if len(there) > 0 {
					i := rapid.IntRange(0, len(there)-1).Draw(t, "which")
					there[i].Free()
					there = slices.Delete(there, i, i+1)
				}
			}
			left()
		}
		for _, q := range there {
			if !bytes.Equal(q.Data, q.data) {
				t.Fatalf("%.20q became %.20q", q.data, q.Data)
			}
			q.Free()
		}
		r.Close()
		if len(m.pages) != pages || len(m.small) != m.layout.small || len(m.large) != 0 {
			t.Fatalf("%d pages and %d small slots are free, and %d are large", len(m.pages), len(m.small), len(m.large))
		}
		there = nil
		left()
	})
}

// TestNoRoom has more large queries of one client than are held: all are read.
func TestNoRoom(t *testing.T) {
	server, client := sockets(t, "127.0.0.1")
	m, _, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Reader(server, where(server), 2049)
	if err != nil {
		t.Fatal(err)
	}
	held := 0
	for i := range 2 * maxLargeEach {
		data := bytes.Repeat([]byte{byte(i)}, slotRoom+1)
		if _, err := client.Write(data); err != nil {
			t.Fatal(err)
		}
		q, err := read(r)
		if err != nil || !bytes.Equal(q.Data, data) {
			t.Fatalf("%.20q, %v", q.Data, err)
		}
		if q.m != nil {
			held++
		}
	}
	if held != maxLargeEach {
		t.Errorf("%d are held", held)
	}
	// Readers that find no page have one of their own, and what they read is held.
	for range pages {
		m.take(&m.pages)
	}
	last, err := m.Reader(server, where(server), 2049)
	if err != nil || last.slot >= 0 {
		t.Fatalf("slot %d, %v", last.slot, err)
	}
	if _, err := client.Write([]byte("query")); err != nil {
		t.Fatal(err)
	}
	if q, err := read(last); err != nil || string(q.Data) != "query" || q.m == nil {
		t.Errorf("%q, %v", q.Data, err)
	}
	last.Close()
}

// TestReadEnds has a reader end as net.UDPConn's own methods do.
func TestReadEnds(t *testing.T) {
	server, _ := sockets(t, "127.0.0.1")
	m, _, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Reader(server, where(server), 2049)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the time: %v", err)
	}
	server.Close()
	if _, err := r.Read(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// file makes a file with memory.
func file(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("unanswered", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// takes returns how much memory a file takes, in bytes.
func takes(t *testing.T, f *os.File) int64 {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return 512 * info.Sys().(*syscall.Stat_t).Blocks
}

// TestFile opens a file that is too small, one that has what somebody else wrote, and one that was
// used: nothing is left, and what it took is free.
func TestFile(t *testing.T) {
	if _, _, err := Open(file(t, pageSize)); err == nil || !strings.Contains(err.Error(), "it has 4096 bytes") {
		t.Errorf("a small file: %v", err)
	}
	f := file(t, Size)
	if _, err := f.WriteAt(bytes.Repeat([]byte{2}, Size), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, left, err := Open(f)
		if err != nil || len(left) > 0 {
			t.Fatalf("%v, %v", left, err)
		}
		if n := takes(t, f); n > int64(os.Getpagesize()) {
			t.Errorf("a file that holds nothing takes %d bytes", n)
		}
	}
	server, client := sockets(t, "127.0.0.1")
	m, _, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Reader(server, where(server), 2049)
	if err != nil {
		t.Fatal(err)
	}
	var q Query
	for range 1000 {
		q.Free()
		if _, err := client.Write([]byte("query")); err != nil {
			t.Fatal(err)
		}
		if q, err = read(r); err != nil {
			t.Fatal(err)
		}
	}
	if n := takes(t, f); n > 4*int64(os.Getpagesize()) {
		t.Errorf("one query at a time takes %d bytes", n)
	}
	before := takes(t, f)
	_, left, err := Open(f)
	if err != nil || len(left) != 1 || string(left[0].Data) != "query" {
		t.Errorf("%v, %v", left, err)
	}
	if n := takes(t, f); n != before {
		t.Errorf("to look took %d bytes", n-before)
	}
}

// serve answers on the socket that is file 3, with the memory that is file 4, if there is any.
func serve() error {
	var memory *os.File
	if _, err := unix.FcntlInt(4, unix.F_GET_SEALS, 0); err == nil {
		memory = os.NewFile(4, "memory")
	}
	f := os.NewFile(3, "socket")
	c, err := net.FilePacketConn(f)
	if err != nil {
		return err
	}
	server := c.(*net.UDPConn)
	m, left, err := Open(memory)
	if err != nil {
		return err
	}
	work := make(chan Query, 64)
	for range 2 {
		go func() {
			for q := range work {
				q.Begin()
				server.WriteToUDPAddrPort(q.Data, q.From)
				q.Free()
			}
		}()
	}
	for _, q := range left {
		if q.At == where(server) {
			work <- q.Query
		}
	}
	r, err := m.Reader(server, where(server), 2049)
	if err != nil {
		return err
	}
	for {
		q, err := read(r)
		if err != nil {
			return err
		}
		work <- q
	}
}

// TestKilled kills servers at random, one after the other, while a client has many queries under way
// at a time. All are answered, and none is sent again.
func TestKilled(t *testing.T) {
	const window, kills = 48, 50
	server, client := sockets(t, "127.0.0.1")
	socket, err := server.File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	memory := file(t, Size)
	stop := make(chan struct{})
	ended := make(chan error, 1)
	answers := make(chan int, window)
	go func() {
		waiting := map[int]bool{}
		buf := make([]byte, 4096)
		over := false
		for next := 0; !over || len(waiting) > 0; {
			for ; !over && len(waiting) < window; next++ {
				waiting[next] = true
				// Some are large, and few of those are under way.
				text := strconv.Itoa(next) + strings.Repeat(" ", next%16/15*(slotRoom+next%7))
				if _, err := client.Write([]byte(text)); err != nil {
					ended <- err
					return
				}
			}
			client.SetReadDeadline(time.Now().Add(long))
			n, err := client.Read(buf)
			if err != nil {
				ended <- err
				return
			}
			number, err := strconv.Atoi(strings.TrimRight(string(buf[:n]), " "))
			if err != nil {
				ended <- err
				return
			}
			delete(waiting, number)
			select {
			case answers <- number:
			case <-stop:
				over = true
			}
		}
		ended <- nil
	}()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	begin := func() *exec.Cmd {
		cmd := exec.Command(self, "server")
		cmd.Stderr = os.Stderr
		cmd.ExtraFiles = []*os.File{socket, memory}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	for range kills {
		cmd := begin()
		for range rand.IntN(2000) {
			select {
			case <-answers:
			case err := <-ended:
				cmd.Process.Kill()
				cmd.Wait()
				t.Fatalf("a query was lost: %v", err)
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
	cmd := begin()
	close(stop)
	err = <-ended
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil {
		t.Errorf("a query was lost: %v", err)
	}
}
