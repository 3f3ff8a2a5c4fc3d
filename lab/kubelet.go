package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/jsonfile"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/registry"
)

// kubeletName is the daemon that sees to pods whose process ends, as a kubelet
// does whose pods are not to be restarted: their phase says how they ended, and
// they give their network back.
const kubeletName = "kubelet"

// endRetry is how long after an attempt that failed an ended pod is seen to
// again, endTimeout how long an attempt may take.
const (
	endRetry   = time.Second
	endTimeout = 30 * time.Second
)

// startKubelet starts the daemon and returns when it watches.
func (l *Lab) startKubelet(ctx context.Context) error {
	_, err := launch{
		Weft: l.options.Weft, Record: l.dir.record(kubeletName), Log: l.dir.log(kubeletName), Ready: true,
		Stage: stage{Args: []string{l.options.Weft, "lab", "kubelet", "--dir", string(l.dir), "--ready-fd", fmt.Sprint(readyFD)}},
	}.start(ctx)
	return err
}

// WatchPods sees to the pods of the lab in a directory whose process ends, until
// ctx ends. ready is called once it does.
func WatchPods(ctx context.Context, directory string, ready func()) error {
	l := &Lab{dir: dir(directory)}
	// A lab is not open before it is up, and its kubelet is there before.
	var s state
	if err := jsonfile.Read(l.dir.optionsFile(), &s); err != nil {
		return err
	}
	l.options = s.Options
	if err := os.Remove(l.dir.kubeletSocket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: l.dir.kubeletSocket(), Net: "unixgram"})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { socket.Close() })
	k := &kubelet{lab: l, watched: make(map[process.ID]bool)}
	ready()
	for {
		k.look(ctx)
		if _, err := socket.Read(make([]byte, 1)); err != nil {
			return nil // ctx has ended
		}
	}
}

// tellKubelet has the kubelet look at the pods that there are. One that does not
// run looks when it starts.
func (l *Lab) tellKubelet() {
	if c, err := net.Dial("unixgram", l.dir.kubeletSocket()); err == nil {
		c.Write([]byte{0})
		c.Close()
	}
}

type kubelet struct {
	lab     *Lab
	mu      sync.Mutex
	watched map[process.ID]bool
}

// look sees to it that each pod's process is watched.
func (k *kubelet) look(ctx context.Context) {
	records, err := k.lab.podRecords()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot read the lab's pods:", err)
		return
	}
	for _, r := range records {
		p := readProcess(k.lab.processFile(r.Pod))
		k.mu.Lock()
		if p.PID != 0 && !r.Released && !k.watched[p] {
			k.watched[p] = true
			go k.watch(ctx, r, p)
		}
		k.mu.Unlock()
	}
}

// watch waits for the end of a pod's process, and sees to the pod then.
func (k *kubelet) watch(ctx context.Context, r podRecord, p process.ID) {
	defer func() {
		k.mu.Lock()
		delete(k.watched, p)
		k.mu.Unlock()
	}()
	for p.Alive() && ctx.Err() == nil {
		if err := waitEnd(ctx, p); err != nil {
			fmt.Fprintf(os.Stderr, "pod %s: %v\n", r.key(), err)
			time.Sleep(endRetry)
		}
	}
	said := ""
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, endTimeout)
		err := k.lab.endPod(attempt, r.Pod, p)
		cancel()
		if err == nil {
			return
		}
		if err.Error() != said {
			said = err.Error()
			fmt.Fprintf(os.Stderr, "pod %s has ended, but cannot be seen to yet: %v\n", r.key(), err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(endRetry):
		}
	}
}

// waitEnd returns when a process has ended, or ctx.
func waitEnd(ctx context.Context, p process.ID) error {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close()
	if !p.Alive() { // what the descriptor stands for is another, or has ended
		return nil
	}
	stop := context.AfterFunc(ctx, func() { file.SetReadDeadline(time.Now()) })
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	// It becomes readable when the process ends, for the runtime's poller, too.
	err = raw.Read(func(uintptr) bool { return !p.Alive() || ctx.Err() != nil })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// endPod has a pod whose process has ended say how, and takes its network away.
func (l *Lab) endPod(ctx context.Context, pod Pod, p process.ID) error {
	if ended, err := l.hasEnded(pod, p); err != nil || !ended {
		return err
	}
	unlock, err := l.dir.lock(shared, false)
	if err != nil {
		return nil // the lab is gone
	}
	defer unlock()
	unlockPod, err := l.lockPod(pod)
	if err != nil {
		return nil // the pod is gone
	}
	defer unlockPod()
	r, err := l.podRecord(pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	if readProcess(l.processFile(pod)) != p || r.Phase == "" || r.Released {
		return nil // it is another pod of that name
	}
	reg, err := l.Registry()
	if err != nil {
		return err
	}
	defer reg.Close()
	_, err = registry.Modify(ctx, reg, api.Pod, r.key(), func(o *corev1.Pod) error {
		if string(o.UID) == r.UID {
			o.Status.Phase = r.Phase
		}
		return nil
	})
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		return err
	}
	m, err := l.node(r.Node)
	if err != nil {
		return err
	}
	if l.isOn(m) {
		if err := l.detach(ctx, r); err != nil {
			return err
		}
		if err := l.onNode(r.Node, func() error { return releaseFile(r.network()) }); err != nil {
			return err
		}
	}
	r.Released = true
	return jsonfile.Write(l.podFile(pod), r)
}

// hasEnded writes down how a pod ended whose process did, and reports whether it
// has: one whose node lost its power starts again with that.
func (l *Lab) hasEnded(pod Pod, p process.ID) (bool, error) {
	unlock, err := l.lockPodOfNode(pod)
	if err != nil {
		return false, nil // the lab or the pod is gone
	}
	defer unlock()
	r, err := l.podRecord(pod.Namespace, pod.Name)
	if err != nil || r.Phase != "" {
		return r.Phase != "", err
	}
	m, err := l.node(pod.Node)
	if err != nil || readProcess(l.processFile(pod)) != p || p.Alive() || !l.isOn(m) {
		return false, err
	}
	r.Phase = corev1.PodFailed
	if code, err := os.ReadFile(l.endFile(pod)); err == nil && strings.TrimSpace(string(code)) == "0" {
		r.Phase = corev1.PodSucceeded
	}
	return true, jsonfile.Write(l.podFile(pod), r)
}

// lockPodOfNode makes sure that nobody else starts or deletes a pod, nor starts or
// stops its node. It never holds the node while it waits for the pod: who holds the
// pod may wait for an agent, which may have to be started first.
func (l *Lab) lockPodOfNode(pod Pod) (unlock func(), err error) {
	for {
		unlockNode, err := l.dir.lockDaemon(pod.Node)
		if err != nil {
			return nil, err
		}
		unlockPod, err := l.tryLockPod(pod)
		if err == nil {
			return func() { unlockPod(); unlockNode() }, nil
		}
		unlockNode()
		if !errors.Is(err, errBusy) {
			return nil, err
		}
		if unlockPod, err = l.lockPod(pod); err != nil {
			return nil, err
		}
		unlockPod()
	}
}

// endFile holds the exit code of a pod's process once that has ended by itself.
func (l *Lab) endFile(p Pod) string { return filepath.Join(l.dir.pod(p.Namespace, p.Name), "ended") }
