package flannel

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/internal/netns"
)

// machine is a network namespace without a name, which goes with the test.
type machine struct {
	t    *testing.T
	name string
	dir  string
	file *os.File // the namespace
}

func newMachine(t *testing.T, name string) *machine {
	t.Helper()
	m := &machine{t: t, name: name, dir: t.TempDir()}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends here
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			m.file, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() { m.file.Close() })
	m.ip("link set lo up")
	return m
}

func (m *machine) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.file.Fd()) }

// do runs f on a thread in the machine.
func (m *machine) do(f func() error) error { return netns.Do(m.path(), f) }

// command is a command in the machine.
func (m *machine) command(name string, args ...string) *exec.Cmd {
	c := exec.Command("nsenter", append([]string{"--net=" + m.path(), "--", name}, args...)...)
	c.Dir = m.dir
	return c
}

// forks runs functions on a thread that lives as long as the process. What is
// started there with Pdeathsig ends with the process; started elsewhere it
// would end with the thread, which netns.Do may use up.
var forks = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// sh runs a line of shell in the machine, and returns what it prints.
func (m *machine) sh(format string, args ...any) string {
	m.t.Helper()
	line := fmt.Sprintf(format, args...)
	out, err := m.command("sh", "-ec", line).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %s: %v: %s", m.name, line, err, out)
	}
	return string(out)
}

func (m *machine) ip(format string, args ...any) { m.t.Helper(); m.sh("ip "+format, args...) }

// process is a daemon in a machine.
type process struct {
	m     *machine
	cmd   *exec.Cmd
	ended chan struct{}
	mu    sync.Mutex
	log   bytes.Buffer
}

// start starts a daemon, which is killed at the end of the test and whose log
// is shown if the test fails.
func (m *machine) start(name string, args ...string) *process {
	m.t.Helper()
	p := &process{m: m, cmd: m.command(name, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	forks() <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		m.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.ended)
	}()
	m.t.Cleanup(func() {
		p.stop(syscall.SIGKILL)
		if m.t.Failed() {
			m.t.Logf("%s: %s:\n%s", m.name, filepath.Base(name), p.output())
		}
	})
	return p
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// stop ends the daemon and waits until it has ended.
func (p *process) stop(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
		p.m.t.Errorf("%s did not end upon %s", p.cmd, signal)
	}
}

// eventually repeats f until it succeeds: other processes say nothing when
// they are done.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	await.NoError(t, 30*time.Second, what, f)
}

// underlay is two links with a router between them, which also stands for the
// world outside and runs etcd.
type underlay struct {
	*machine
	wires int
}

const (
	outside  = "198.51.100.7"
	outside6 = "2001:db8::7"
)

func newUnderlay(t *testing.T) *underlay {
	u := &underlay{machine: newMachine(t, "underlay")}
	u.sh("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	for i := range 2 {
		u.ip("link add br%d type bridge", i)
		u.ip("address add 172.30.%d.254/24 dev br%d", i, i)
		u.ip("address add fd00:30:%d::fe/64 dev br%d nodad", i, i)
		u.ip("link set br%d up", i)
	}
	u.ip("address add %s/32 dev lo", outside)
	u.ip("address add %s/128 dev lo", outside6)
	return u
}

// attach wires a machine to one of the links, as 172.30.LINK.HOST and
// fd00:30:LINK::HOST.
func (u *underlay) attach(m *machine, link, host int) {
	u.wires++
	u.ip("link add wire%d type veth peer name eth0 netns %s", u.wires, m.path())
	u.ip("link set wire%d master br%d up", u.wires, link)
	m.ip("address add 172.30.%d.%d/24 dev eth0", link, host)
	m.ip("address add fd00:30:%d::%d/64 dev eth0 nodad", link, host)
	m.ip("link set eth0 up")
	m.ip("route add default via 172.30.%d.254", link)
	m.ip("route add default via fd00:30:%d::fe", link)
}

// serve answers each TCP connection with the client's address, and then with
// all that the client sends.
func (m *machine) serve(port int) {
	m.t.Helper()
	var l net.Listener
	err := m.do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echo(c)
		}
	}()
}
