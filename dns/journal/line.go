package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"strconv"

	"github.com/weftnet/weft/dns/records"
)

// version is that of the lines, which the first of a file says.
const version = 1

// maxLine is the longest line that is read, in bytes. A Service with twenty thousand
// endpoints takes a tenth of it.
const maxLine = 32 << 20

// prefix is how long what is in front of a line's JSON is: the sum and a space.
const prefix = 9

// sums is the polynomial of the lines' sums.
var sums = crc32.MakeTable(crc32.Castagnoli)

// line is one line of the file: one of its fields is set.
type line struct {
	Version  int               `json:"journal,omitempty"`
	Settings *records.Settings `json:"settings,omitempty"`
	Service  *records.Service  `json:"service,omitempty"`
	Gone     *records.Key      `json:"gone,omitempty"`
	// Namespace is one that exists, Ended one that does no more. Servers of versions before know
	// no such lines, and leave them out.
	Namespace *string         `json:"namespace,omitempty"`
	Ended     *string         `json:"ended,omitempty"`
	Client    *records.Client `json:"client,omitempty"`
	Left      *netip.Addr     `json:"left,omitempty"`
	// Commit ends a batch.
	Commit bool `json:"commit,omitempty"`
}

// appendLine adds a line to b, and returns the sum of all lines so far, given that of those
// before. A sum is that of all JSON from the beginning of the file, so that no line can be
// missing in front of one that is right.
func appendLine(b []byte, sum uint32, l line) ([]byte, uint32, error) {
	data, err := json.Marshal(l)
	if err != nil {
		return b, sum, err
	}
	sum = crc32.Update(sum, sums, data)
	b = fmt.Appendf(b, "%08x ", sum)
	b = append(b, data...)
	return append(b, '\n'), sum, nil
}

// errTail is what the decoder returns of bytes that end within a line: more may come.
var errTail = errors.New("the file ends within a line")

// decoder makes batches of the bytes of one file, in order. It is pure.
type decoder struct {
	sum   uint32
	lines int
	// open is the batch whose end has not come yet.
	open Batch
}

// next takes the first line of data, and returns how long it is. The batch is not nil if the
// line ends one. The error is errTail where data has no whole line.
func (d *decoder) next(data []byte) (n int, b *Batch, err error) {
	end := bytes.IndexByte(data, '\n')
	switch {
	case end < 0 && len(data) > maxLine, end > maxLine:
		return 0, nil, fmt.Errorf("line %d is longer than %d bytes", d.lines+1, maxLine)
	case end < 0:
		return 0, nil, errTail
	}
	b, err = d.line(data[:end])
	if err != nil {
		return 0, nil, fmt.Errorf("line %d: %w", d.lines+1, err)
	}
	d.lines++
	return end + 1, b, nil
}

func (d *decoder) line(text []byte) (*Batch, error) {
	if len(text) < prefix || text[prefix-1] != ' ' {
		return nil, errors.New("it has no sum")
	}
	want, err := strconv.ParseUint(string(text[:prefix-1]), 16, 32)
	if err != nil {
		return nil, fmt.Errorf("its sum is %q", text[:prefix-1])
	}
	data := text[prefix:]
	sum := crc32.Update(d.sum, sums, data)
	if sum != uint32(want) {
		return nil, fmt.Errorf("its sum is %08x, and should be %08x", sum, want)
	}
	var l line
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, err
	}
	if d.lines == 0 && l.Version != version {
		return nil, fmt.Errorf("it is of version %d, and version %d is known: run a server of the agent's version", l.Version, version)
	}
	d.sum = sum
	switch {
	case l.Settings != nil:
		d.open.Settings = l.Settings
	case l.Service != nil:
		sharePorts(l.Service.Endpoints)
		d.open.Put = append(d.open.Put, l.Service)
	case l.Gone != nil:
		d.open.Gone = append(d.open.Gone, *l.Gone)
	case l.Namespace != nil:
		d.open.Namespaces = append(d.open.Namespaces, *l.Namespace)
	case l.Ended != nil:
		d.open.Ended = append(d.open.Ended, *l.Ended)
	case l.Client != nil:
		d.open.Clients = append(d.open.Clients, *l.Client)
	case l.Left != nil:
		d.open.Left = append(d.open.Left, *l.Left)
	case l.Commit:
		b := d.open
		d.open = Batch{}
		return &b, nil
	}
	return nil, nil
}

// sharePorts has endpoints that have the same ports as those before them have these in one memory, as
// most of a Service do.
func sharePorts(all []records.Endpoint) {
	for i := 1; i < len(all); i++ {
		if slices.Equal(all[i].Ports, all[i-1].Ports) {
			all[i].Ports = all[i-1].Ports
		}
	}
}
