package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// workerArgument makes this program a worker: a process inside a network
// namespace that serves, makes load and does what else must be done there, as
// it is told on its standard input. It ends with that, and so does a namespace
// that is its own: however the benchmark ends, it leaves nothing behind.
const workerArgument = "worker"

type request struct {
	Do string
	// To is where the load goes, and For how long.
	To  netip.Addr    `json:",omitzero"`
	For time.Duration `json:",omitzero"`
	// On is whether segmentation is offloaded.
	On bool `json:",omitzero"`
	// Program is what is run, with Args and with its output in the file Log.
	Program string   `json:",omitzero"`
	Args    []string `json:",omitzero"`
	Log     string   `json:",omitzero"`
	// Ask, LookUp and Await say what there is to ask of a name server.
	Ask    asking   `json:",omitzero"`
	LookUp lookups  `json:",omitzero"`
	Await  awaiting `json:",omitzero"`
	// Load is what load there is to make while something breaks.
	Load loading `json:",omitzero"`
}

type reply struct {
	Error  string `json:",omitzero"`
	Sample sample `json:",omitzero"`
	// PID is the process number of the program that was run.
	PID int `json:",omitzero"`
	// Loaded is what became of load.
	Loaded *loaded `json:",omitzero"`
}

// What a worker can be told to do.
const (
	doServe     = "serve"
	doOffload   = "offload"
	doStream    = "stream"
	doRoundTrip = "round trips"
	doConnect   = "connections"
	doReach     = "reach"
	doRun       = "run"
	doEnd       = "end"
	doUpstream  = "serve names outside"
	doConstant  = "serve a constant"
	doCount     = "count queries"
	doAsk       = "queries"
	doLookUp    = "look-ups"
	doAwait     = "await an answer"
	doMeet      = "meet backends"
	doBegin     = "begin load"
	doPart      = "part with backends"
	doEndLoad   = "end load"
)

func (r request) run() (sample, error) {
	switch r.Do {
	case doServe:
		return sample{}, serve()
	case doOffload:
		return sample{}, setOffload(r.On)
	case doStream:
		return stream(r.To, r.For)
	case doRoundTrip:
		return roundTrips(r.To, r.For)
	case doConnect:
		return connects(r.To, r.For)
	case doReach:
		return reach(r.To, r.For)
	case doUpstream:
		return sample{}, serveUpstream(r.To)
	case doConstant:
		return sample{}, serveConstant(r.To)
	case doCount:
		return sample{Count: upstreamAsked.Load()}, nil
	case doAsk:
		return ask(r.To, r.Ask, r.For)
	case doLookUp:
		return lookUpAll(r.To, r.LookUp, r.For)
	case doAwait:
		return r.Await.await(r.To, r.For)
	case doMeet:
		return sample{}, meet(r.Load, r.For)
	case doBegin:
		return sample{}, beginLoad(r.Load)
	case doPart:
		return sample{}, partLoad(r.Load.Names)
	}
	return sample{}, fmt.Errorf("a worker cannot do %q", r.Do)
}

// runWorker is the program of a worker.
func runWorker() error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var program program
	for {
		var r request
		if err := in.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var answer reply
		var err error
		switch r.Do {
		case doRun:
			answer.PID, err = program.start(r.Log, r.Program, r.Args...)
		case doEnd:
			program.end()
		case doEndLoad:
			answer.Loaded, err = endLoad()
		default:
			answer.Sample, err = r.run()
		}
		if err != nil {
			answer.Error = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
}

// worker is a running worker, seen from the benchmark. Its methods must not be
// called concurrently.
type worker struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *json.Decoder
	// serves says that it was told to serve.
	serves bool
}

// newWorker starts a worker in the network namespace at path, or in a new one
// where path is empty.
func newWorker(name, path string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{name: name, cmd: exec.Command(self, workerArgument)}
	w.cmd.Stderr = os.Stderr
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = json.NewDecoder(bufio.NewReader(stdout))
	if path == "" {
		w.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		err = w.cmd.Start()
	} else {
		err = netns.Do(path, w.cmd.Start)
	}
	if err != nil {
		return nil, fmt.Errorf("start a worker as %s: %w", name, err)
	}
	return w, nil
}

// namespace is the path of the worker's network namespace.
func (w *worker) namespace() string { return fmt.Sprintf("/proc/%d/ns/net", w.cmd.Process.Pid) }

// do has the worker do something and waits for it.
func (w *worker) do(r request) (sample, error) {
	answer, err := w.ask(r)
	return answer.Sample, err
}

func (w *worker) ask(r request) (answer reply, err error) {
	if err := json.NewEncoder(w.stdin).Encode(r); err != nil {
		return answer, fmt.Errorf("%s: %s: %w", w.name, r.Do, err)
	}
	if err := w.out.Decode(&answer); err != nil {
		return answer, fmt.Errorf("%s: %s: the worker ended: %w", w.name, r.Do, err)
	}
	if answer.Error != "" {
		return answer, fmt.Errorf("%s: %s: %s", w.name, r.Do, answer.Error)
	}
	return answer, nil
}

// serve has the worker serve, from now on.
func (w *worker) serve() error {
	if w.serves {
		return nil
	}
	_, err := w.do(request{Do: doServe})
	w.serves = err == nil
	return err
}

// run runs a program with some input in the worker's namespace.
func (w *worker) run(input, name string, args ...string) error {
	return netns.Do(w.namespace(), func() error {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %s %s: %w\n%s", w.name, name, strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// close ends the worker.
func (w *worker) close() {
	w.stdin.Close()
	w.cmd.Wait()
}
