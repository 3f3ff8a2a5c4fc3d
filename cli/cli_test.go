package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/internal/jsonfile"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
	"github.com/weftnet/weft/registry/etcd/embedded"
)

func TestMain(m *testing.M) {
	weft := func() { os.Exit(Main(os.Args)) }
	testscript.Main(m, map[string]func(){"weft": weft, kubectlPlugin: weft, kubectlCompletion: weft})
}

// TestScripts runs the commands against an etcd that starts empty.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: golden.Update(), RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			setHome(env)
			socket := filepath.Join(env.WorkDir, "etcd.sock")
			server, err := embedded.Start(t.Context(), embedded.Config{
				Dir: filepath.Join(env.WorkDir, "etcd"), ListenClient: []string{"unix://" + socket},
				Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				return err
			}
			env.Defer(server.Close)
			env.Setenv("WEFT_ETCD_ENDPOINTS", "unix://"+socket)
			return nil
		},
		Cmds: commands,
	})
}

// TestLab runs the lab's commands, with real agents and packets.
func TestLab(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("makes clusters")
	}
	cni := sync.OnceValue(func() error {
		weft, err := exec.LookPath("weft") // where testscript put it
		if err != nil {
			return err
		}
		build := exec.Command("go", "build", "-trimpath", "-o", filepath.Dir(weft), "../cmd/weft-agent", "../cmd/weft-cni", "../cmd/weft-dns", "../cmd/weft-dns-server")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build what lies beside weft: %w\n%s", err, out)
		}
		return nil
	})
	testscript.Run(t, testscript.Params{
		Dir: "testdata/lab", UpdateScripts: golden.Update(), RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			setHome(env)
			// Short, for the socket in it.
			dir, err := os.MkdirTemp("", "weft-lab-test-")
			if err != nil {
				return err
			}
			env.Setenv("WEFT_LAB_DIR", filepath.Join(dir, "lab"))
			env.Defer(func() {
				down := exec.Command("weft", "lab", "down", "--dir", filepath.Join(dir, "lab"))
				if out, err := down.CombinedOutput(); err != nil {
					t.Errorf("lab down: %v\n%s", err, out)
				}
				os.RemoveAll(dir)
			})
			return cni()
		},
		Cmds: commands,
	})
}

// setHome keeps the user's own configuration out of a script.
func setHome(env *testscript.Env) {
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("WEFT_LAB_DIR", filepath.Join(env.WorkDir, "no-lab"))
}

// commands are what scripts can use besides testscript's own.
var commands = map[string]func(*testscript.TestScript, bool, []string){
	"exits":   exits,
	"put":     put,
	"hold":    hold,
	"until":   until,
	"machine": machine,
	"killdir": killdir,
	"stopdir": stopdir,
	"crash":   crash,
}

// registryOf opens the etcd of a script, until the script ends.
func registryOf(ts *testscript.TestScript) registry.Registry {
	reg, err := etcd.Open(etcd.Config{Endpoints: []string{ts.Getenv("WEFT_ETCD_ENDPOINTS")}})
	ts.Check(err)
	ts.Defer(func() { reg.Close() })
	return reg
}

// put writes the objects of a file as others than weft apply do, who know no
// plug-ins: put FILE.
func put(ts *testscript.TestScript, neg bool, args []string) {
	reg := registryOf(ts)
	decoded, err := api.Decode([]byte(ts.ReadFile(args[0])), kinds())
	ts.Check(err)
	for _, d := range decoded {
		_, err := reg.Create(context.Background(), d.Kind, d.Object)
		if errors.Is(err, registry.ErrExists) {
			var have registry.Object
			have, err = reg.Get(context.Background(), d.Kind, registry.KeyOf(d.Object))
			ts.Check(err)
			d.Object.SetResourceVersion(have.GetResourceVersion())
			_, err = reg.Update(context.Background(), d.Kind, d.Object)
		}
		ts.Check(err)
	}
}

// hold holds a lease until the script ends: hold LEASE HOLDER.
func hold(ts *testscript.TestScript, neg bool, args []string) {
	_, err := registryOf(ts).Acquire(context.Background(), args[0], args[1], time.Minute)
	ts.Check(err)
}

// until runs a command again and again until its standard output matches, whatever its
// exit code: until 'Settled' weft plugin status.
func until(ts *testscript.TestScript, neg bool, args []string) {
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_ = ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if pattern.MatchString(out) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s does not print %q, but\n%s%s", strings.Join(args[1:], " "), args[0], out, ts.ReadFile("stderr"))
		}
	}
}

// exits runs a command and wants an exit code: exits 2 weft get.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	if exit, ok := err.(*exec.ExitError); ok {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("%s ended with %d, not %d", strings.Join(args[1:], " "), code, want)
	}
}

// machine writes down what a lab must not change or leave behind: the links,
// addresses, routes and sysctls of the machine, mounts in the lab's directory,
// and processes that know it.
func machine(ts *testscript.TestScript, neg bool, args []string) {
	dir := ts.Getenv("WEFT_LAB_DIR")
	var b strings.Builder
	for _, command := range [][]string{{"ip", "-o", "link"}, {"ip", "-o", "address"}, {"ip", "route", "show", "table", "all"},
		{"ip", "-6", "route", "show", "table", "all"}, {"ip", "rule"}, {"sysctl", "-a", "--pattern", "^net.ipv[46].(conf|ip_forward)"}} {
		out, err := exec.Command(command[0], command[1:]...).Output()
		ts.Check(err)
		fmt.Fprintf(&b, "== %s\n%s", strings.Join(command, " "), timers.ReplaceAll(out, nil))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	ts.Check(err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) { // other tests mount things, too
			fmt.Fprintf(&b, "mount %s", line)
		}
	}
	entries, err := os.ReadDir("/proc")
	ts.Check(err)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err != nil || pid == os.Getpid() {
			continue
		}
		// What has ended meanwhile cannot be read, and does not count.
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if strings.Contains(string(command), dir) || strings.Contains(string(environ), "HOME="+ts.Getenv("HOME")+"\x00") {
			fmt.Fprintf(&b, "process %s %q\n", e.Name(), command)
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(b.String()), 0o600))
}

// timers match what changes by itself.
var timers = regexp.MustCompile(`(valid_lft|preferred_lft|expires) \w+`)

// killdir kills the process whose record is in the lab at a path, and returns
// when it has ended.
func killdir(ts *testscript.TestScript, neg bool, args []string) {
	var p process.ID
	ts.Check(jsonfile.Read(filepath.Join(ts.Getenv("WEFT_LAB_DIR"), args[0]), &p))
	if !p.Alive() {
		ts.Fatalf("process %d has ended already", p.PID)
	}
	ts.Check(p.Kill())
}

// stopdir stops the process whose record is in the lab at a path, so that it hangs.
func stopdir(ts *testscript.TestScript, neg bool, args []string) {
	var p process.ID
	ts.Check(jsonfile.Read(filepath.Join(ts.Getenv("WEFT_LAB_DIR"), args[0]), &p))
	ts.Check(syscall.Kill(p.PID, syscall.SIGSTOP))
}

// crash starts a weft command and kills it without warning when it has printed
// a line that matches: crash 'node1: ready' lab up.
func crash(ts *testscript.TestScript, neg bool, args []string) {
	pattern, err := regexp.Compile(args[0])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	weft, err := exec.LookPath("weft")
	ts.Check(err)
	cmd := exec.CommandContext(ctx, weft, args[1:]...)
	cmd.Env = append(os.Environ(), "WEFT_LAB_DIR="+ts.Getenv("WEFT_LAB_DIR"), "HOME="+ts.Getenv("HOME"))
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	var seen strings.Builder
	buffer := make([]byte, 4096)
	for !pattern.MatchString(seen.String()) {
		n, err := out.Read(buffer)
		seen.Write(buffer[:n])
		if err != nil {
			cmd.Wait()
			ts.Fatalf("it ended before it printed %q:\n%s", args[0], seen.String())
		}
	}
	ts.Check(cmd.Process.Kill())
	cmd.Wait()
}
