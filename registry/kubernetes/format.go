package kubernetes

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/weftnet/weft/registry"
)

// maxObject is the size in bytes of the largest object that is read. etcd
// stores values of 1.5 MiB, and of a few MiB where it is told to.
const maxObject = 16 << 20

var errTooLarge = fmt.Errorf("it sent an object of more than %d MiB", maxObject>>20)

// format is how objects travel.
type format interface {
	// accept is the media type to ask for, and that of a watch.
	accept(watch bool) string
	// object reads a single object, still encoded.
	object(io.Reader) ([]byte, error)
	// list reads a list, and calls item for each encoded object, which may be
	// used until it returns.
	list(r io.Reader, item func([]byte)) (metav1.ListMeta, error)
	// events returns a function that reads the next event of a watch. Its
	// object may be used until the next call. At the end it is io.EOF.
	events(io.Reader) func() (kind string, object []byte, err error)
	// decode fills in an object. into is as the format's other half wants it.
	decode(data []byte, into any) error
}

// formatOf returns the format of a kind: protobuf where the type and the API
// server know it. What a CustomResourceDefinition defines is JSON, whatever
// its Go type can do.
func formatOf(k *registry.Kind) format {
	if _, ok := k.New().(message); ok && builtin(k.Group) {
		return protobuf{}
	}
	return asJSON{}
}

// decode returns an object as the registry hands it out.
func decode(k *registry.Kind, f format, data []byte) (registry.Object, error) {
	o := k.New()
	if err := f.decode(data, o); err != nil {
		return nil, err
	}
	if o.GetName() == "" || o.GetResourceVersion() == "" {
		return nil, errors.New("it has no name or no resource version, and so is not from an API server")
	}
	o.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	if k.Keep != nil {
		k.Keep(o)
	}
	return o, nil
}

// keyAt returns the key of an encoded object, of which the rest may be
// anything.
func keyAt(f format, data []byte) registry.Key {
	var o metav1.PartialObjectMetadata
	_ = f.decode(data, &o) // then the key is empty, which is all that is known
	return registry.Key{Namespace: o.Namespace, Name: o.Name}
}

// readObject reads all there is, up to the size of an object.
func readObject(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxObject+1))
	if err == nil && len(data) > maxObject {
		err = errTooLarge
	}
	return data, err
}

// asJSON is the format that all kinds have.
type asJSON struct{}

func (asJSON) accept(bool) string { return "application/json" }

func (asJSON) object(r io.Reader) ([]byte, error) { return readObject(r) }

func (asJSON) decode(data []byte, into any) error { return kjson.Unmarshal(data, into) }

func (asJSON) list(r io.Reader, item func([]byte)) (meta metav1.ListMeta, err error) {
	limited := &io.LimitedReader{R: r}
	d := json.NewDecoder(limited)
	// value reads a value no larger than an object.
	value := func(into any) error {
		limited.N = maxObject
		err := d.Decode(into)
		if err != nil && limited.N == 0 {
			return errTooLarge
		}
		return err
	}
	expect := func(want json.Delim) error {
		limited.N = maxObject
		t, err := d.Token()
		if err == nil && t != want {
			err = fmt.Errorf("it sent a list with %v where %v was expected", t, want)
		}
		return err
	}
	if err := expect('{'); err != nil {
		return meta, err
	}
	var raw json.RawMessage
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return meta, err
		}
		switch name {
		case "metadata":
			err = value(&meta)
		case "items":
			limited.N = maxObject
			switch t, err := d.Token(); {
			case err != nil:
				return meta, err
			case t == nil: // null
				continue
			case t != json.Delim('['):
				return meta, fmt.Errorf("it sent a list whose items are %v", t)
			}
			for d.More() {
				if err := value(&raw); err != nil {
					return meta, err
				}
				item(raw)
			}
			err = expect(']')
		default:
			err = value(&raw)
		}
		if err != nil {
			return meta, err
		}
	}
	return meta, expect('}')
}

func (asJSON) events(r io.Reader) func() (string, []byte, error) {
	limited := &io.LimitedReader{R: r}
	d := json.NewDecoder(limited)
	var e struct {
		Type   string
		Object json.RawMessage
	}
	return func() (string, []byte, error) {
		limited.N = maxObject
		e.Object = e.Object[:0]
		err := d.Decode(&e)
		if err != nil && limited.N == 0 {
			err = errTooLarge
		}
		return e.Type, e.Object, err
	}
}

// protobuf is the format of Kubernetes' own kinds. A message on its own is
// wrapped: magic, then a runtime.Unknown whose Raw it is.
type protobuf struct{}

var magic = []byte("k8s\x00")

// message is what Kubernetes' types with a protobuf format have.
type message interface{ Unmarshal([]byte) error }

func (protobuf) accept(watch bool) string {
	if watch {
		return runtime.ContentTypeProtobuf + ";stream=watch"
	}
	return runtime.ContentTypeProtobuf
}

func (protobuf) object(r io.Reader) ([]byte, error) {
	data, err := readObject(r)
	if err != nil {
		return nil, err
	}
	return unwrap(data)
}

func unwrap(data []byte) ([]byte, error) {
	wrapped, ok := bytes.CutPrefix(data, magic)
	if !ok {
		return nil, errNotProtobuf
	}
	var u runtime.Unknown
	if err := u.Unmarshal(wrapped); err != nil {
		return nil, err
	}
	return u.Raw, nil
}

var errNotProtobuf = errors.New("it sent something other than the protobuf that was asked for")

func (protobuf) decode(data []byte, into any) error { return into.(message).Unmarshal(data) }

// list reads a list as it comes, so that memory holds one encoded object at a
// time. All lists of Kubernetes are {1: metadata, 2: repeated items}.
func (protobuf) list(r io.Reader, item func([]byte)) (meta metav1.ListMeta, err error) {
	b := bufio.NewReader(r)
	start := make([]byte, len(magic))
	if _, err := io.ReadFull(b, start); err != nil {
		return meta, err
	}
	if !bytes.Equal(start, magic) {
		return meta, errNotProtobuf
	}
	const raw, metadata, items = 2, 1, 2
	var buffer []byte
	w := &wire{r: b, left: 1 << 62}
	for {
		field, size, err := w.field()
		if err != nil {
			return meta, unexpected(err)
		}
		if field != raw {
			if err := w.skip(size); err != nil {
				return meta, err
			}
			continue
		}
		inner := &wire{r: b, left: size}
		for inner.left > 0 {
			field, size, err := inner.field()
			if err != nil {
				return meta, unexpected(err)
			}
			if field != metadata && field != items {
				if err := inner.skip(size); err != nil {
					return meta, err
				}
				continue
			}
			if buffer, err = inner.bytes(buffer, size); err != nil {
				return meta, err
			}
			if field == items {
				item(buffer)
			} else if err := meta.Unmarshal(buffer); err != nil {
				return meta, err
			}
		}
		return meta, nil // what follows says how it was encoded
	}
}

// wire reads the fields of a protobuf message.
type wire struct {
	r    *bufio.Reader
	left int64 // bytes of the message
}

var errWire = errors.New("it sent protobuf that is none")

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReadByte implements io.ByteReader.
func (w *wire) ReadByte() (byte, error) {
	if w.left <= 0 {
		return 0, errWire
	}
	w.left--
	return w.r.ReadByte()
}

// field reads up to the value of the next field, and returns how many bytes
// that has. It returns io.EOF at the end.
func (w *wire) field() (number uint64, size int64, err error) {
	tag, err := binary.ReadUvarint(w)
	if err != nil {
		return 0, 0, err
	}
	const varint, fixed64, delimited, fixed32 = 0, 1, 2, 5
	switch tag & 7 {
	case varint:
		_, err = binary.ReadUvarint(w)
	case fixed64:
		size = 8
	case fixed32:
		size = 4
	case delimited:
		var n uint64
		n, err = binary.ReadUvarint(w)
		size = int64(n)
		if n > uint64(w.left) {
			err = errors.Join(err, errWire)
		}
	default:
		err = errWire
	}
	return tag >> 3, size, unexpected(err)
}

func (w *wire) skip(size int64) error {
	if size > w.left {
		return errWire
	}
	w.left -= size
	_, err := io.CopyN(io.Discard, w.r, size)
	return unexpected(err)
}

// bytes reads a value into a buffer, which it makes larger if need be.
func (w *wire) bytes(buffer []byte, size int64) ([]byte, error) {
	switch {
	case size > w.left:
		return buffer, errWire
	case size > maxObject:
		return buffer, errTooLarge
	case size > int64(cap(buffer)):
		buffer = make([]byte, size)
	}
	w.left -= size
	buffer = buffer[:size]
	_, err := io.ReadFull(w.r, buffer)
	return buffer, unexpected(err)
}

// events reads frames: the length in four bytes, then a WatchEvent.
func (protobuf) events(r io.Reader) func() (string, []byte, error) {
	b := bufio.NewReader(r)
	var buffer []byte
	return func() (string, []byte, error) {
		var length [4]byte
		if _, err := io.ReadFull(b, length[:]); err != nil {
			return "", nil, err
		}
		size := int64(binary.BigEndian.Uint32(length[:]))
		var err error
		if buffer, err = (&wire{r: b, left: size}).bytes(buffer, size); err != nil {
			return "", nil, err
		}
		var e metav1.WatchEvent
		if err := e.Unmarshal(buffer); err != nil {
			return "", nil, err
		}
		object, err := unwrap(e.Object.Raw)
		return e.Type, object, err
	}
}
