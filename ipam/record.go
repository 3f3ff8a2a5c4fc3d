package ipam

import (
	"encoding/json"
	"errors"
	"net/netip"

	"github.com/weftnet/weft/plan"
)

// journalVersion is that of the file format. Version 1, which knew one network
// alone, is read, too.
const journalVersion = 2

// operation is what a line of the journal announces.
type operation string

const (
	opHeader   operation = "weft-journal"
	opAttach   operation = "attach"
	opReady    operation = "ready"
	opRelease  operation = "release"
	opFreed    operation = "freed"
	opIdentify operation = "identify"
	opResize   operation = "resize"
)

// record is a line of the journal.
type record struct {
	Op operation `json:"op"`
	// Version is that of the header.
	Version int `json:"version,omitempty"`
	// Attachment is what opAttach adds.
	Attachment *Attachment `json:"attachment,omitempty"`
	// Key is what opReady, opRelease, opIdentify and opResize name.
	Key *Key `json:"key,omitempty"`
	// Pod is whose the attachment is, for opIdentify.
	Pod *PodName `json:"pod,omitempty"`
	// MTU is what the attachment has now, for opResize.
	MTU int `json:"mtu,omitempty"`
	// Network is that of the addresses of Attachment, or of Freed.
	Network string `json:"network,omitempty"`
	// Freed are addresses free again, the one freed longest ago first.
	Freed []netip.Addr `json:"freed,omitempty"`
}

// line is the record as it is written.
func (r record) line() ([]byte, error) {
	if r.Attachment != nil {
		r.Network = r.Attachment.Network
	}
	line, err := json.Marshal(r)
	return append(line, '\n'), err
}

// parse reads a line of this version or of the first. A line with addresses says
// in which network they are, or is of version 1. So each can be read without the
// header, which may be lost.
func parse(line []byte) (record, error) {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return record{}, err
	}
	if r.Network == "" && (r.Attachment != nil || r.Freed != nil) {
		return parseFirst(line)
	}
	if r.Attachment != nil {
		r.Attachment.Network = r.Network
	}
	return r, nil
}

// parseFirst reads a line with addresses of version 1. They are in the one network
// that there was, and what it calls the network of an attachment is the name of the
// CNI configuration.
func parseFirst(line []byte) (record, error) {
	r := record{Network: plan.DefaultNetwork}
	var first struct {
		Attachment struct {
			Network string `json:"network"`
		} `json:"attachment"`
	}
	if err := errors.Join(json.Unmarshal(line, &r), json.Unmarshal(line, &first)); err != nil {
		return record{}, err
	}
	if r.Attachment != nil {
		r.Attachment.Network, r.Attachment.Configuration = plan.DefaultNetwork, first.Attachment.Network
	}
	return r, nil
}
