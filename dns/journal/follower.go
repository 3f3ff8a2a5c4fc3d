package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/dns/records"
)

// lookAnyway is how often the file is looked at though nothing was heard of it.
const lookAnyway = 5 * time.Second

// watchAgain is how long after the directory has gone it is looked for again.
const watchAgain = 100 * time.Millisecond

// Follower is the server's end: it reads, and goes on reading. While there is no file, or one
// that makes no sense, what was read before holds.
type Follower struct {
	path  string
	apply func(Batch)

	// Of the file that is read:
	file    *os.File
	decoder decoder
	// offset is of the first byte that has not been decoded, begun of those from there that
	// have been read already and are no whole line.
	offset int64
	begun  []byte
	// whole says that a batch of the file was read; the first is all there is.
	whole bool
	// broken says that no more is to be read of it.
	broken bool

	// What was delivered.
	services   map[records.Key]struct{}
	namespaces map[string]struct{}
	clients    map[netip.Addr]struct{}

	// known is closed by know; see Known.
	known chan struct{}
	know  func()

	mu    sync.Mutex
	state State
}

// State is how a Follower is doing.
type State struct {
	// Read is when a batch was read last; zero if none was ever. Written is when the agent wrote the
	// file last of which it was.
	Read, Written time.Time
	// Looking says that it reads the file, or has yet to begin.
	Looking bool
	// Problem is what keeps it from reading on; nil if nothing does.
	Problem error
	// Services and Clients are how many were read and are there.
	Services, Clients int
}

// Follow returns a Follower of the file at path that calls apply for each batch, in order and
// from the goroutine in which Run or Look is.
func Follow(path string, apply func(Batch)) *Follower {
	known := make(chan struct{})
	return &Follower{path: path, apply: apply, services: map[records.Key]struct{}{}, namespaces: map[string]struct{}{}, clients: map[netip.Addr]struct{}{}, known: known, know: sync.OnceFunc(func() { close(known) }), state: State{Looking: true}}
}

// State returns how it is doing. It may be called at any time.
func (f *Follower) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// Known returns a channel that is closed once a batch was read, and with it all that the file had
// by then: what was added since the file was written whole is in batches of its own.
func (f *Follower) Known() <-chan struct{} { return f.known }

// Run reads until ctx ends, and returns why that did.
func (f *Follower) Run(ctx context.Context) error {
	defer f.close()
	changed := make(chan struct{}, 1)
	go f.listen(ctx, changed)
	tick := time.NewTicker(lookAnyway)
	defer tick.Stop()
	for {
		f.Look()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
		}
	}
}

// Look reads what has come since the last time.
func (f *Follower) Look() {
	f.mu.Lock()
	f.state.Looking = true
	f.mu.Unlock()
	err := f.look()
	f.mu.Lock()
	f.state.Looking, f.state.Problem = false, err
	read := !f.state.Read.IsZero()
	f.mu.Unlock()
	if read {
		f.know()
	}
}

func (f *Follower) look() error {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		// An open file would keep its directory, of whose end nothing would be heard.
		f.close()
		return fmt.Errorf("there are no records of names at %s: is the agent running?", f.path)
	case err != nil:
		return fmt.Errorf("read the records of names: %w", err)
	}
	for {
		again, err := f.reopen(info)
		if err != nil {
			return err
		}
		if err := f.read(); err != nil {
			return err
		}
		if !again {
			return nil
		}
		// What was renamed to path meanwhile was perhaps told of before it was there.
		if info, err = os.Stat(f.path); err != nil {
			return nil
		}
	}
}

// reopen opens what is at the path if it is another file than the one that is read, or that
// one has become shorter, and says whether it did.
func (f *Follower) reopen(info os.FileInfo) (bool, error) {
	if f.file != nil {
		have, err := f.file.Stat()
		if err == nil && os.SameFile(have, info) && info.Size() >= f.offset+int64(len(f.begun)) {
			return false, nil
		}
		f.close()
	}
	file, err := os.Open(f.path)
	if err != nil {
		return false, fmt.Errorf("read the records of names: %w", err)
	}
	f.file = file
	return true, nil
}

// close forgets the file, and not what it said.
func (f *Follower) close() {
	if f.file != nil {
		f.file.Close()
	}
	f.file, f.decoder, f.offset, f.begun, f.whole, f.broken = nil, decoder{}, 0, nil, false, false
}

// read takes what the file has beyond what was read.
func (f *Follower) read() error {
	if f.broken {
		return f.state.Problem
	}
	for {
		// A long line is not looked through again for each of its parts.
		chunk := make([]byte, max(enough, len(f.begun)))
		n, err := f.file.ReadAt(chunk, f.offset+int64(len(f.begun)))
		f.begun = append(f.begun, chunk[:n]...)
		if broken := f.decode(); broken != nil {
			f.broken, f.begun, f.decoder.open = true, nil, Batch{}
			return fmt.Errorf("the records of names at %s are broken in %w; what they said before holds until the agent writes them anew", f.path, broken)
		}
		switch {
		case errors.Is(err, io.EOF):
			if len(f.begun) == 0 {
				f.begun = nil
			}
			return nil
		case err != nil:
			return fmt.Errorf("read the records of names: %w", err)
		}
	}
}

// decode takes all whole lines of what was read.
func (f *Follower) decode() error {
	rest := f.begun
	defer func() { f.begun = append(f.begun[:0], rest...) }()
	for {
		n, b, err := f.decoder.next(rest)
		switch {
		case errors.Is(err, errTail):
			return nil
		case err != nil:
			return err
		}
		rest, f.offset = rest[n:], f.offset+int64(n)
		if b != nil {
			f.deliver(b)
		}
	}
}

// deliver applies a batch. The first of a file takes away what it does not have.
func (f *Follower) deliver(b *Batch) {
	if !f.whole {
		f.whole = true
		gone, ended, left := maps.Clone(f.services), maps.Clone(f.namespaces), maps.Clone(f.clients)
		for _, s := range b.Put {
			delete(gone, s.Key)
		}
		for _, name := range b.Namespaces {
			delete(ended, name)
		}
		for _, c := range b.Clients {
			delete(left, c.Address)
		}
		for k := range gone {
			b.Gone = append(b.Gone, k)
		}
		for name := range ended {
			b.Ended = append(b.Ended, name)
		}
		for a := range left {
			b.Left = append(b.Left, a)
		}
	}
	for _, k := range b.Gone {
		delete(f.services, k)
	}
	for _, s := range b.Put {
		f.services[s.Key] = struct{}{}
	}
	for _, name := range b.Ended {
		delete(f.namespaces, name)
	}
	for _, name := range b.Namespaces {
		f.namespaces[name] = struct{}{}
	}
	for _, a := range b.Left {
		delete(f.clients, a)
	}
	for _, c := range b.Clients {
		f.clients[c.Address] = struct{}{}
	}
	f.apply(*b)
	written := f.written()
	f.mu.Lock()
	f.state.Read, f.state.Written, f.state.Services, f.state.Clients = time.Now(), written, len(f.services), len(f.clients)
	f.mu.Unlock()
}

// written returns when the file was written last.
func (f *Follower) written() time.Time {
	info, err := f.file.Stat()
	if err != nil {
		return time.Now() // it has just been read
	}
	return info.ModTime()
}

// listen says when something happens to the file, as far as the kernel tells.
func (f *Follower) listen(ctx context.Context, changed chan<- struct{}) {
	for ctx.Err() == nil {
		w, err := watch(filepath.Dir(f.path))
		if err == nil {
			stop := context.AfterFunc(ctx, func() { w.Close() })
			say(changed)
			w.hear(filepath.Base(f.path), changed)
			stop()
			w.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

func say(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// watcher is told of what happens in a directory.
type watcher struct{ *os.File }

func watch(dir string) (watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return watcher{}, os.NewSyscallError("inotify_init1", err)
	}
	const events = unix.IN_MODIFY | unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, events); err != nil {
		unix.Close(fd)
		return watcher{}, os.NewSyscallError("inotify_add_watch", err)
	}
	return watcher{os.NewFile(uintptr(fd), "inotify")}, nil
}

// hear says changed whenever something happens to the file of a name, until nothing more is
// told.
func (w watcher) hear(name string, changed chan<- struct{}) {
	buf := make([]byte, 4096)
	for {
		n, err := w.Read(buf)
		if err != nil {
			return
		}
		concerns, over := events(buf[:n], name)
		if concerns {
			say(changed)
		}
		if over {
			return
		}
	}
}
