// Package journal hands a node's records of names from the agent to the name server: through
// a file, so that either may be away while the other goes on.
//
// The file has a line for the settings, and for each namespace, Service and pod that the server answers by, and further
// lines for what changed since, in batches: a batch counts once the line is there that ends it.
// Each line has the sum of all before it. The first batch of a file is all there is; so the
// agent writes a file anew, beside the old one and in its place by a rename, whenever it
// starts, when a write failed, and when more than half of the file is what later lines have
// changed. A kill at any byte leaves a batch without its end, which counts as not there.
//
// The agent's end is Journal, and the server's is Follower. The file belongs on a file system
// that does not outlive a boot, as /run: nothing waits for a disk.
package journal

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/dns/records"
)

// DefaultPath is where the file is on a node.
const DefaultPath = "/run/weft/dns/agent/records"

// keepGarbage is how many bytes of lines that others have replaced a file may have, however
// few the others are.
const keepGarbage = 256 << 10

// Batch is a change of what the server answers by. All of it holds, or none. What is gone is
// taken away before what is new is put.
type Batch struct {
	// Settings are nil where they stay as they are.
	Settings *records.Settings
	// Put are Services that are new, or are there in another form.
	Put []*records.Service
	// Gone are those that are there no more.
	Gone []records.Key
	// Namespaces are those that exist now, and Ended those that exist no more.
	Namespaces, Ended []string
	// Clients are pods that are new, or are in another namespace.
	Clients []records.Client
	// Left are the addresses of those that are there no more.
	Left []netip.Addr
}

// empty reports whether nothing changes.
func (b *Batch) empty() bool {
	return b.Settings == nil && len(b.Put)+len(b.Gone)+len(b.Namespaces)+len(b.Ended)+len(b.Clients)+len(b.Left) == 0
}

// Journal is the agent's end: it writes. It is for one goroutine.
type Journal struct {
	path string
	// file is nil until the first Put, and while the one at path is not to be trusted.
	file io.WriteCloser
	// info says which file it is, and sum is that of its lines.
	info os.FileInfo
	sum  uint32
	// What the file says, as lines, and how long these are in bytes.
	settings entry[*records.Settings]
	services map[records.Key]entry[*records.Service]
	// named are the namespaces, in order, and namespaces how long the line of each is.
	named      []string
	namespaces map[string]int
	clients    map[netip.Addr]entry[records.Client]
	// live is the length of these, and size that of the file.
	live, size int
}

// entry is what a file says of one thing.
type entry[T any] struct {
	value T
	// length is that of its line, in bytes; 0 where no file has it yet.
	length int
}

// Open makes ready to write the file at path, whose directory is made where there is none. The
// file that is there stays as it is until the first Put.
func Open(path string) (*Journal, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the records of names: %w", err)
	}
	return &Journal{path: path, services: map[records.Key]entry[*records.Service]{}, namespaces: map[string]int{}, clients: map[netip.Addr]entry[records.Client]{}}, nil
}

// Close closes the file. What it says stays.
func (j *Journal) Close() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}

// Put writes how things are now: the settings, all namespaces, in order, those Services that changed
// since the last Put, the keys of those that are gone since, and all of the node's clients. The
// first Put is to have all Services. What is as the file says it is not written. Neither settings,
// namespaces nor Services are to be changed afterwards. After an error the next Put writes a new file, so that nothing
// need be told again.
func (j *Journal) Put(settings *records.Settings, namespaces []string, changed []*records.Service, gone []records.Key, clients []records.Client) error {
	b := j.difference(settings, namespaces, changed, gone, clients)
	if err := j.write(b); err != nil {
		j.Close()
		return fmt.Errorf("write the records of names to %s: %w", j.path, err)
	}
	return nil
}

// difference changes what is known, and returns by what.
func (j *Journal) difference(settings *records.Settings, namespaces []string, changed []*records.Service, gone []records.Key, clients []records.Client) *Batch {
	b := &Batch{}
	if settings != nil && (j.settings.value == nil || !same(j.settings.value, settings)) {
		b.Settings = settings
		j.live -= j.settings.length
		j.settings = entry[*records.Settings]{value: settings}
	}
	b.Namespaces, b.Ended = j.differentNamespaces(namespaces)
	for _, k := range gone {
		if e, ok := j.services[k]; ok {
			j.live -= e.length
			delete(j.services, k)
			b.Gone = append(b.Gone, k)
		}
	}
	for _, s := range changed {
		e, ok := j.services[s.Key]
		if ok && e.value.Equal(s) {
			continue
		}
		j.live -= e.length
		j.services[s.Key] = entry[*records.Service]{value: s}
		b.Put = append(b.Put, s)
	}
	there := make(map[netip.Addr]bool, len(clients))
	for _, c := range clients {
		there[c.Address] = true
		if e, ok := j.clients[c.Address]; !ok || e.value != c {
			j.live -= e.length
			j.clients[c.Address] = entry[records.Client]{value: c}
			b.Clients = append(b.Clients, c)
		}
	}
	for a, e := range j.clients {
		if !there[a] {
			j.live -= e.length
			delete(j.clients, a)
			b.Left = append(b.Left, a)
		}
	}
	return b
}

// differentNamespaces changes which namespaces are known, and returns those that are new, and that
// are gone. Where they are those of the last Put, in the same memory, it costs nothing.
func (j *Journal) differentNamespaces(now []string) (came, gone []string) {
	before := j.named
	if len(now) == len(before) && (len(now) == 0 || &now[0] == &before[0]) {
		return nil, nil
	}
	j.named = now
	for len(before)+len(now) > 0 {
		c := len(now) - len(before) // where one of them has no more
		if len(before) > 0 && len(now) > 0 {
			c = strings.Compare(before[0], now[0])
		}
		if c < 0 {
			gone = append(gone, before[0])
			j.live -= j.namespaces[before[0]]
			delete(j.namespaces, before[0])
		}
		if c > 0 {
			came = append(came, now[0])
		}
		if c <= 0 {
			before = before[1:]
		}
		if c >= 0 {
			now = now[1:]
		}
	}
	return came, gone
}

// same reports whether two settings are.
func same(a, b *records.Settings) bool {
	one, _, err := appendLine(nil, 0, line{Settings: a})
	two, _, other := appendLine(nil, 0, line{Settings: b})
	return err == nil && other == nil && string(one) == string(two)
}

// write writes a batch to the file, or all that is known to a new one.
func (j *Journal) write(b *Batch) error {
	if j.file == nil || j.size > 2*j.live+keepGarbage || j.Replaced() {
		return j.rewrite()
	}
	if b.empty() {
		return nil
	}
	e := encoder{to: j.file, sum: j.sum}
	j.encode(&e, b)
	if err := e.end(); err != nil {
		return err
	}
	j.sum, j.size = e.sum, j.size+e.size
	return nil
}

// Replaced reports whether what is at the path is not the file that was written last, so that a
// Put is due though nothing has changed. It takes one look at the file.
func (j *Journal) Replaced() bool {
	if j.file == nil {
		return false
	}
	info, err := os.Stat(j.path)
	return err != nil || !os.SameFile(info, j.info) || info.Size() != int64(j.size)
}

// rewrite makes a new file that says all that is known.
func (j *Journal) rewrite() error {
	j.Close()
	all := &Batch{Settings: j.settings.value, Namespaces: j.named}
	for _, e := range j.services {
		all.Put = append(all.Put, e.value)
	}
	for _, e := range j.clients {
		all.Clients = append(all.Clients, e.value)
	}
	slices.SortFunc(all.Put, func(a, b *records.Service) int { return a.Key.Compare(b.Key) })
	slices.SortFunc(all.Clients, func(a, b records.Client) int { return a.Address.Compare(b.Address) })
	beside := j.path + ".new"
	// What a process before left there may be open in nobody; its length does not matter.
	f, err := os.OpenFile(beside, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	j.live = 0
	e := encoder{to: f}
	e.line(line{Version: version})
	j.encode(&e, all)
	info, statErr := f.Stat()
	err = errors.Join(e.end(), statErr)
	if err == nil {
		err = os.Rename(beside, j.path)
	}
	if err != nil {
		f.Close()
		// Where it did not fit, what is there of it would take the room of others'.
		os.Remove(beside)
		return err
	}
	j.file, j.info, j.sum, j.size = f, info, e.sum, e.size
	return nil
}

// encode writes the lines of a batch, and remembers how long those are that hold until others
// replace them.
func (j *Journal) encode(e *encoder, b *Batch) {
	keep := func(l line) int {
		n := e.line(l)
		j.live += n
		return n
	}
	if b.Settings != nil {
		j.settings.length = keep(line{Settings: b.Settings})
	}
	for _, name := range b.Ended {
		e.line(line{Ended: &name})
	}
	for _, name := range b.Namespaces {
		j.namespaces[name] = keep(line{Namespace: &name})
	}
	for _, k := range b.Gone {
		e.line(line{Gone: &k})
	}
	for _, s := range b.Put {
		j.services[s.Key] = entry[*records.Service]{s, keep(line{Service: s})}
	}
	for _, a := range b.Left {
		e.line(line{Left: &a})
	}
	for _, c := range b.Clients {
		j.clients[c.Address] = entry[records.Client]{c, keep(line{Client: &c})}
	}
	e.line(line{Commit: true})
}

// encoder writes lines, some at a time.
type encoder struct {
	to   io.Writer
	sum  uint32
	size int
	buf  []byte
	err  error
}

// enough is how many bytes are written at once, at least.
const enough = 64 << 10

// line writes l, and returns its length in bytes.
func (e *encoder) line(l line) int {
	if e.err != nil {
		return 0
	}
	before := len(e.buf)
	e.buf, e.sum, e.err = appendLine(e.buf, e.sum, l)
	n := len(e.buf) - before
	e.size += n
	if len(e.buf) >= enough {
		e.flush()
	}
	return n
}

func (e *encoder) flush() {
	if e.err == nil && len(e.buf) > 0 {
		_, e.err = e.to.Write(e.buf)
	}
	e.buf = e.buf[:0]
}

// end writes what is left, and says what failed.
func (e *encoder) end() error {
	e.flush()
	return e.err
}
