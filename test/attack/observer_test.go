package attack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// Each thing that is sent carries a word that no other carries.

const wordPrefix = "weft-attack-"

var words atomic.Uint32

func newWord() string { return fmt.Sprintf("%s%08d", wordPrefix, words.Add(1)) }

// observer sees what arrives somewhere, and remembers the words in it and what
// they came in.
type observer struct {
	where string
	mu    sync.Mutex
	seen  map[string][]byte
	files []*os.File
	run   sync.WaitGroup
}

func newObserver(t testing.TB, where string) *observer {
	o := &observer{where: where, seen: map[string][]byte{}}
	t.Cleanup(func() {
		for _, f := range o.files {
			f.Close()
		}
		o.run.Wait()
	})
	return o
}

// arrivals sees every frame that comes in on any interface of a network
// namespace, before any rule of that namespace.
func arrivals(t testing.TB, where, ns string) *observer {
	t.Helper()
	o := newObserver(t, where)
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in the network's order
	o.open(t, ns, unix.AF_PACKET, unix.SOCK_RAW, all, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	})
	return o
}

// sniffer sees what arrivals does and what others' links show to one who
// listens in promiscuous mode.
func sniffer(t testing.TB, where, ns string) *observer {
	t.Helper()
	o := newObserver(t, where)
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	o.open(t, ns, unix.AF_PACKET, unix.SOCK_RAW, all, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		return errors.Join(forEachLink(func(index int) error {
			return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC})
		}))
	})
	return o
}

// delivered sees what the kernel of a network namespace gives to its own
// sockets, behind all of its rules, of these protocols.
func delivered(t testing.TB, where, ns string) *observer {
	t.Helper()
	o := newObserver(t, where)
	for _, protocol := range []int{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMP} {
		o.open(t, ns, unix.AF_INET, unix.SOCK_RAW, protocol, nil)
	}
	for _, protocol := range []int{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMPV6} {
		o.open(t, ns, unix.AF_INET6, unix.SOCK_RAW, protocol, nil)
	}
	return o
}

func (o *observer) open(t testing.TB, ns string, family, kind, protocol int, prepare func(fd int) error) {
	t.Helper()
	err := netns.Do(ns, func() error {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			return err
		}
		// So that a flood does not hide what comes after it.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		if prepare != nil {
			if err := prepare(fd); err != nil {
				unix.Close(fd)
				return err
			}
		}
		o.files = append(o.files, os.NewFile(uintptr(fd), o.where))
		return nil
	})
	if err != nil {
		t.Fatalf("listen at %s: %v", o.where, err)
	}
	f := o.files[len(o.files)-1]
	o.run.Go(func() {
		for b := make([]byte, 1<<16); ; {
			n, err := f.Read(b)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			o.note(b[:max(n, 0)])
		}
	})
}

func (o *observer) note(b []byte) {
	for rest := b; ; {
		i := bytes.Index(rest, []byte(wordPrefix))
		if i < 0 || len(rest) < i+len(wordPrefix)+8 {
			return
		}
		word := string(rest[i : i+len(wordPrefix)+8])
		o.mu.Lock()
		if _, ok := o.seen[word]; !ok {
			o.seen[word] = bytes.Clone(b)
		}
		o.mu.Unlock()
		rest = rest[i+len(wordPrefix):]
	}
}

// saw returns what a word came in, nil if it did not.
func (o *observer) saw(word string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[word]
}

// watch is what must not arrive at an observer, and what must.
type watch struct {
	t         *trial
	at        *observer
	forbidden []probe
	// counts says whether what a forbidden word came in counts; nil if all does.
	counts func(in []byte) bool
	judged bool
}

// probe is one thing that is sent, and the word in it.
type probe struct{ what, word string }

func (t *trial) watch(at *observer) *watch {
	w := &watch{t: t, at: at}
	t.Cleanup(func() {
		if !w.judged && !t.Failed() && !t.Skipped() {
			t.Errorf("nothing was to arrive at %s, so that what did not says nothing", at.where)
		}
	})
	return w
}

// forbid sends what must not arrive.
func (w *watch) forbid(what string, send func(word string)) {
	word := newWord()
	w.forbidden = append(w.forbidden, probe{what, word})
	send(word)
}

// control sends what must arrive, by the way that what is forbidden would take,
// and after it; then it is known what did arrive. It may be called more than
// once, for what differs in more than one thing.
func (w *watch) control(what string, send func(word string)) {
	w.t.Helper()
	// Twice, the second time after the first has come, so that what was sent
	// before has come, too, on whichever processor.
	for range 2 {
		w.t.arrives(w.at, what, send)
	}
	w.judged = true
	for _, f := range w.forbidden {
		if in := w.at.saw(f.word); in != nil && (w.counts == nil || w.counts(in)) {
			w.t.breach("%s: it arrived at %s", f.what, w.at.where)
		}
	}
	w.forbidden = nil
}

// arrives sends until an observer sees it, and ends the test if it never does.
func (t *trial) arrives(at *observer, what string, send func(word string)) {
	t.Helper()
	var sent []string
	for began := time.Now(); time.Since(began) < patience; {
		word := newWord()
		sent = append(sent, word)
		send(word)
		for again := time.Now().Add(300 * time.Millisecond); time.Now().Before(again); time.Sleep(time.Millisecond) {
			for _, word := range sent {
				if at.saw(word) != nil {
					t.controls++
					return
				}
			}
		}
	}
	t.Fatalf("control: %s did not arrive at %s, so that what else did not says nothing", what, at.where)
}
