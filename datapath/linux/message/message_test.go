package message_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
)

// TestAttributes reads what the library writes, attributes of every length and those
// within others among them.
func TestAttributes(t *testing.T) {
	type attribute struct {
		kind  uint16
		value []byte
	}
	wrote := []attribute{{1, nil}, {2, []byte{1}}, {3, []byte("eth0\x00")}, {4, nl.Uint32Attr(1 << 20)}, {5, bytes.Repeat([]byte{7}, 300)}}
	var b []byte
	for _, a := range wrote {
		b = append(b, nl.NewRtAttr(int(a.kind)|unix.NLA_F_NESTED, a.value).Serialize()...)
	}
	var read []attribute
	for kind, v := range message.Attributes(b) {
		read = append(read, attribute{kind, v})
	}
	if len(read) != len(wrote) {
		t.Fatalf("%d attributes, not %d", len(read), len(wrote))
	}
	for i, a := range wrote {
		if read[i].kind != a.kind || !bytes.Equal(read[i].value, a.value) {
			t.Errorf("attribute %d is %v, not %v", i, read[i], a)
		}
	}
	for range message.Attributes(b) {
		break // who has enough is given no more
	}
}

// FuzzAttributes holds attributes of any bytes to be within them, one behind the other.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 0, 1, 0})
	f.Add([]byte{4, 0, 1, 0})
	f.Add([]byte{5, 0, 1, 0, 9})
	f.Add([]byte{255, 255, 1, 0, 9, 9, 9, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		have := 0
		for _, v := range message.Attributes(b) {
			have += unix.SizeofRtAttr + len(v)
			if have > len(b) {
				t.Fatalf("attributes of %d bytes in %d", have, len(b))
			}
		}
	})
}

// TestNumbers reads numbers of their length, and takes all else for 0.
func TestNumbers(t *testing.T) {
	minusTwo := binary.NativeEndian.AppendUint32(nil, ^uint32(1))
	if n := message.Int(minusTwo); n != -2 {
		t.Errorf("%d, not -2", n)
	}
	if n := message.Octet([]byte{200}); n != 200 {
		t.Errorf("%d, not 200", n)
	}
	if n := message.BigEndian([]byte{1, 2, 3, 4}); n != 0x01020304 {
		t.Errorf("%#x, not 0x01020304", n)
	}
	for _, b := range [][]byte{nil, {1, 2}, {1, 2, 3}, {1, 2, 3, 4, 5}} {
		if message.Int(b) != 0 || message.Octet(b) != 0 || message.BigEndian(b) != 0 {
			t.Errorf("%d bytes are %d, %d and %d, not 0", len(b), message.Int(b), message.Octet(b), message.BigEndian(b))
		}
	}
}

// TestDump repeats lists that others' changes interrupt, though not without end, and no
// others.
func TestDump(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct {
		what   string
		errors []error
		asked  int
		err    error
	}{
		{"a list", []error{nil}, 1, nil},
		{"an interrupted one", []error{netlink.ErrDumpInterrupted, unix.EINTR, nil}, 3, nil},
		{"a refused one", []error{refused, nil}, 1, refused},
		{"one that is always interrupted", []error{netlink.ErrDumpInterrupted}, 20, netlink.ErrDumpInterrupted},
	} {
		asked := 0
		n, err := message.Dump(func() (int, error) {
			err := c.errors[min(asked, len(c.errors)-1)]
			asked++
			return asked, err
		})
		if asked != c.asked || n != c.asked || !errors.Is(err, c.err) {
			t.Errorf("%s: asked %d times, and not %d; result %d, error %v", c.what, asked, c.asked, n, err)
		}
	}
}
