// Package ipam gives the pods of one node their addresses and remembers who
// holds which, so that none is ever held twice in its network, however often the
// agent dies.
//
// A Journal is a file of JSON lines. Each change is one line, written before
// the action that it announces: Reserve before an interface is made, Release
// after it is gone. What the lines add up to is the type state, which is pure
// and says in which order addresses are given out: those never used first, in
// order, and then the one that has been free the longest.
//
// The file belongs on a file system that does not outlive a boot, as /run,
// because the interfaces do not either. So a line need only outlive the
// process, and nothing waits for a disk.
//
// Start reading at Journal.
package ipam

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// compactAfter is the number of lines beyond twice the needed ones at which
// the file is written anew.
const compactAfter = 1024

// Journal is the record of a node's attachments. Its methods may be called
// concurrently.
type Journal struct {
	mu    sync.Mutex
	path  string
	lock  *os.File
	file  file
	state *state
	// size is the length of the file's good part in bytes, lines its lines.
	size   int64
	lines  int
	damage error
	// broken is set when the file cannot be trusted to take another line.
	broken error
}

// file is what a Journal needs of an *os.File.
type file interface {
	io.Writer
	io.Closer
	Truncate(size int64) error
}

// DamageError says that a journal holds a line that cannot be, and where the
// file was put aside to.
type DamageError struct {
	Path   string
	Line   int
	Reason error
	// Saved is the damaged file's new path.
	Saved string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("journal %s is damaged in line %d: %v; it was kept as %s, and what the other lines say holds", e.Path, e.Line, e.Reason, e.Saved)
}

func (e *DamageError) Unwrap() error { return e.Reason }

// Open opens the journal at path and locks it against a second process; it is
// an error if another holds it. A file that is not there is made, and so is
// its directory.
//
// A last line that was not written to its end is dropped: what it announced
// has not begun. Any other line that makes no sense is damage, which does not
// keep a node from starting: what the other lines say is taken, the file is
// put aside, and Damage says so. Addresses that the lost line gave to a pod
// whose interface is there are found by that interface, which carries them
// in its alias (see package podlink), and taken up again with Adopt before
// any is given out.
func Open(path string) (*Journal, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the journal's directory: %w", err)
	}
	// The lock is on a file of its own, because compaction replaces the
	// journal.
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the journal's lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("journal %s is in use by another process: is an agent running on this node already?", path)
		}
		return nil, fmt.Errorf("lock the journal %s: %w", path, err)
	}
	j := &Journal{path: path, lock: lock}
	if err := j.load(); err != nil {
		lock.Close()
		return nil, err
	}
	return j, nil
}

func (j *Journal) load() error {
	data, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the journal: %w", err)
	}
	r, err := replay(data)
	if err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	j.state = r.state
	if r.line > 0 {
		saved := fmt.Sprintf("%s.damaged-%s", j.path, time.Now().UTC().Format("20060102T150405.000"))
		if err := os.WriteFile(saved, data, 0o600); err != nil {
			return fmt.Errorf("keep the damaged journal: %w", err)
		}
		j.damage = &DamageError{Path: j.path, Line: r.line, Reason: r.reason, Saved: saved}
		return j.compact()
	}
	if r.size == 0 || r.version != journalVersion {
		// An agent that reads version 1 alone would take the next line for one of
		// the default network.
		return j.compact()
	}
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	if err := f.Truncate(r.size); err != nil {
		f.Close()
		return fmt.Errorf("drop the last line of the journal, which was not written to its end: %w", err)
	}
	j.file, j.size, j.lines = f, r.size, r.lines
	return nil
}

// replayed is what a journal's content adds up to.
type replayed struct {
	state *state
	// version is what the header says; 0 where that is lost.
	version int
	// size is the length of the lines that are whole, lines their number.
	size  int64
	lines int
	// line is the number of the first damaged line, from 1, and reason what
	// is wrong with it; 0 where none is.
	line   int
	reason error
}

// replay adds up the content of a journal. Its error is that of a file made
// by a later version of Weft.
func replay(data []byte) (replayed, error) {
	r := replayed{state: newState()}
	for {
		end := bytes.IndexByte(data[r.size:], '\n')
		if end < 0 {
			return r, nil
		}
		line := data[r.size : r.size+int64(end)]
		r.size += int64(end) + 1
		r.lines++
		rec, err := parse(line)
		switch {
		case err != nil:
		case r.lines == 1 && rec.Op == opHeader:
			if r.version = rec.Version; r.version < 1 || r.version > journalVersion {
				return r, fmt.Errorf("it has the format version %d, and this agent reads versions 1 to %d: run the version of Weft that wrote it, or drain the node and remove the file", rec.Version, journalVersion)
			}
			continue
		case r.lines == 1:
			err = fmt.Errorf("the file does not begin with %q", opHeader)
			// The line may well be a record: the header alone is lost.
			_ = r.state.apply(rec)
		default:
			err = r.state.apply(rec)
		}
		if err != nil && r.line == 0 {
			r.line, r.reason = r.lines, err
		}
	}
}

// Damage returns what Open found wrong with the file, or nil.
func (j *Journal) Damage() error { return j.damage }

// Close gives the journal up to another process.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken = errors.New("the journal is closed")
	return errors.Join(j.file.Close(), j.lock.Close())
}

// Reserve gives req an address of each family that pools has for its network, and
// records that; from then on they are the attachment's until Release. It gives none of
// which node says that the node has it itself: nil says so of none. The errors
// it wraps are ErrExists, ErrNoPools and ErrExhausted. Once pools returns others, Each
// tells of all that got an address of what it returned before.
func (j *Journal) Reserve(req Request, pools func() []plan.Pool, node func(netip.Addr) bool) (Attachment, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.state.attachments[req.Key]; ok {
		return Attachment{}, fmt.Errorf("%s: %w", req.Key, ErrExists)
	}
	j.state.usePools(pools())
	addrs, gateways, err := j.pick(req.Network, node)
	if err != nil {
		return Attachment{}, err
	}
	a := Attachment{Request: req, Addresses: addrs, Gateways: gateways, Router: j.state.poolsOf(req.Network)[0].Gateway,
		Phase: Pending, Created: time.Now().UTC().Round(0)}
	return a, j.commit(record{Op: opAttach, Attachment: &a})
}

// mostOfNode is how many addresses that the node has itself are passed over for one
// attachment: it may have a prefix of very many.
const mostOfNode = 256

// pick returns addresses as state.pick does, but for those that the node has itself. Such
// a one is recorded as freed just now, so that it is asked for again only once all others
// have been given out.
func (j *Journal) pick(network string, node func(netip.Addr) bool) (addrs, gateways []netip.Addr, err error) {
	passed := make(map[netip.Addr]bool)
	for {
		addrs, gateways, err = j.state.pick(network)
		if err != nil || node == nil {
			return addrs, gateways, err
		}
		i := slices.IndexFunc(addrs, node)
		if i < 0 {
			return addrs, gateways, nil
		}
		if passed[addrs[i]] || len(passed) == mostOfNode {
			return nil, nil, fmt.Errorf("%w: the node has %s itself, and so all of the %d that were looked at: take them off its interfaces (ip address), or its routes of type local", ErrExhausted, addrs[i], len(passed))
		}
		passed[addrs[i]] = true
		if err := j.commit(record{Op: opFreed, Network: network, Freed: addrs[i : i+1]}); err != nil {
			return nil, nil, err
		}
	}
}

// Adopt records an attachment that was found rather than made. It is an error
// if another holds one of its addresses.
func (j *Journal) Adopt(a Attachment) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.commit(record{Op: opAttach, Attachment: &a})
}

// Commit records that the attachment is ready.
func (j *Journal) Commit(k Key) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.commit(record{Op: opReady, Key: &k})
}

// Identify records whose an attachment is of which that was not known.
func (j *Journal) Identify(k Key, p PodName) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.commit(record{Op: opIdentify, Key: &k, Pod: &p})
}

// Resize records that both ends of the attachment's interface have another
// MTU, in bytes.
func (j *Journal) Resize(k Key, mtu int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.commit(record{Op: opResize, Key: &k, MTU: mtu})
}

// Release records that the attachment and its interface are gone, and frees
// its addresses. Releasing what is not there is no error.
func (j *Journal) Release(k Key) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.state.attachments[k]; !ok {
		return nil
	}
	return j.commit(record{Op: opRelease, Key: &k})
}

// Get returns an attachment.
func (j *Journal) Get(k Key) (Attachment, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	a, ok := j.state.attachments[k]
	return a, ok
}

// All returns the attachments in the order of their keys.
func (j *Journal) All() []Attachment {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.state.attachments), func(a, b Attachment) int { return a.Key.Compare(b.Key) })
}

// Of returns the attachments of a container, in the order of their keys.
func (j *Journal) Of(containerID string) []Attachment {
	var all []Attachment
	j.Each(func(a Attachment) {
		if a.ContainerID == containerID {
			all = append(all, a)
		}
	})
	slices.SortFunc(all, func(a, b Attachment) int { return a.Key.Compare(b.Key) })
	return all
}

// Each calls f with every attachment, in no order. f must not call the journal.
func (j *Journal) Each(f func(Attachment)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, a := range j.state.attachments {
		f(a)
	}
}

// commit writes r, then applies it. After an error nothing has changed.
func (j *Journal) commit(r record) error {
	if j.broken != nil {
		return j.broken
	}
	if err := j.state.check(r); err != nil {
		return err
	}
	line, err := r.line()
	if err != nil {
		return fmt.Errorf("encode a journal record: %w", err)
	}
	if _, err := j.file.Write(line); err != nil {
		// What was written of the line must go, or the next one would make
		// it a damaged one.
		if undo := j.file.Truncate(j.size); undo != nil {
			j.broken = fmt.Errorf("the journal %s takes no more records, because half of one could not be removed (%w): restart the agent", j.path, undo)
		}
		return fmt.Errorf("write the journal %s: %w", j.path, err)
	}
	j.size += int64(len(line))
	j.lines++
	if err := j.state.apply(r); err != nil {
		return err
	}
	if j.lines > compactAfter+2*len(j.state.attachments) {
		if err := j.compact(); err != nil {
			// The long file is as good as the short one.
			slog.Warn("the journal could not be compacted", "path", j.path, "error", err)
			j.lines = 0
		}
	}
	return nil
}

// compact replaces the file by the shortest that says the same.
func (j *Journal) compact() error {
	temp := j.path + ".new"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("write the journal anew: %w", err)
	}
	j.state.forget()
	records := append([]record{{Op: opHeader, Version: journalVersion}}, j.state.snapshot()...)
	size, err := writeRecords(f, records)
	if err == nil {
		err = os.Rename(temp, j.path)
	}
	if err != nil {
		return fmt.Errorf("write the journal anew: %w", errors.Join(err, f.Close(), os.Remove(temp)))
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.size, j.lines = f, size, len(records)
	return nil
}

func writeRecords(f io.Writer, records []record) (int64, error) {
	var size int64
	w := bufio.NewWriter(f)
	for _, r := range records {
		line, err := r.line()
		if err != nil {
			return 0, err
		}
		n, err := w.Write(line)
		size += int64(n)
		if err != nil {
			return 0, err
		}
	}
	return size, w.Flush()
}
