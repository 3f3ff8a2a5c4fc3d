package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/weftnet/weft/lab"
)

// loneAgent is an agent on a machine of its own, which has no link to the lab:
// it can reach a registry over a Unix socket only.
type loneAgent struct {
	t      *testing.T
	runDir string
	pid    int
	log    *lockedBuffer
	done   chan error
}

// oneAddress sets up a machine with one address.
const oneAddress = `ip link set lo up
ip link add eth0 type veth peer name peer0
ip addr add 172.30.0.99/16 dev eth0
ip link set eth0 up
ip link set peer0 up
ip route add default via 172.30.0.1
`

// startAgent runs a shell script that sets up a machine, and an agent there
// until the test ends.
func startAgent(t *testing.T, setup string, args ...string) *loneAgent {
	t.Helper()
	needRoot(t)
	dir := shortDir(t)
	a := &loneAgent{t: t, runDir: filepath.Join(dir, "run"), log: new(lockedBuffer), done: make(chan error, 1)}
	all := append([]string{"-ec", setup + `exec "$@"`, "sh", bin + "weft-agent", "--register-node",
		"--run-dir", a.runDir, "--subnet-file", filepath.Join(dir, "subnet.env"),
		"--cni-conf-file", "", "--cni-bin-dir", ""}, args...)
	cmd := exec.Command("sh", all...)
	cmd.Stdout, cmd.Stderr = a.log, a.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.pid = cmd.Process.Pid
	go func() { a.done <- cmd.Wait() }()
	t.Cleanup(func() {
		// The script may have started more than the agent.
		syscall.Kill(-a.pid, syscall.SIGKILL)
		<-a.done
		if t.Failed() {
			t.Logf("lone agent:\n%s", a.log)
		}
	})
	return a
}

// wantUnready waits until the agent says that pods cannot be networked, and
// why.
func (a *loneAgent) wantUnready(words ...string) {
	a.t.Helper()
	eventually(a.t, func() error {
		ok, said := ask(a.t, a.runDir, "/readyz")
		if ok {
			return fmt.Errorf("the agent is ready")
		}
		for _, w := range words {
			if !strings.Contains(said, w) {
				return fmt.Errorf("/readyz lacks %q: %s", w, said)
			}
		}
		return nil
	})
}

// lockedBuffer is a buffer that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// sandbox is a network namespace on a node that is attached by hand, with the
// CNI plug-in alone: what a runtime does where there is no registry.
type sandbox struct {
	c    *cluster
	node place
	name string
}

// sandbox makes a network namespace on a node.
func (c *cluster) sandbox(node, name string) sandbox {
	c.Helper()
	// Not with "ip netns add", which mounts the directory over itself.
	c.mustExec(place("node/"+node), "sh", "-ec", "touch /run/netns/"+name+"; unshare --net=/run/netns/"+name+" true")
	return sandbox{c, place("node/" + node), name}
}

// cni calls the plug-in and returns what it answers.
func (s sandbox) cni(command string) (answer struct {
	Code    int
	Msg     string
	Details string
	IPs     []struct{ Address string }
}) {
	s.c.Helper()
	var out bytes.Buffer
	err := s.c.execute(s.node, lab.Command{
		Args: []string{"env", "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + s.name, "CNI_NETNS=/run/netns/" + s.name,
			"CNI_IFNAME=eth0", "CNI_PATH=" + bin, bin + "weft-cni"},
		Stdin:  strings.NewReader(`{"cniVersion": "1.1.0", "name": "weft", "type": "weft-cni", "socket": "/run/weft/agent.sock"}`),
		Stdout: &out, Stderr: os.Stderr,
	})
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
			s.c.Fatalf("CNI %s: %v: %s", command, err, out.String())
		}
	}
	if (err == nil) != (answer.Code == 0) {
		s.c.Fatalf("CNI %s: %v: %s", command, err, out.String())
	}
	return answer
}

// exec runs a command in the sandbox.
func (s sandbox) exec(args ...string) (string, error) {
	return s.c.exec(s.node, append([]string{"ip", "netns", "exec", s.name}, args...)...)
}

// nsenter is a command on a lone agent's machine.
func nsenter(pid int, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", pid)}, args...)...)
}
