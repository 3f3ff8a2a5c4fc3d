// Package protocol is what the CNI plug-in weft-cni and the agent say to each
// other over the agent's Unix socket: one Request and one Response, a line of
// JSON each, for each connection.
//
// It imports the standard library only, so that weft-cni stays small. Start
// at Request.
package protocol

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Version is that of the protocol. Both sides refuse another.
const Version = 1

// DefaultSocket is where the agent listens unless the CNI configuration's key
// "socket" says otherwise.
const DefaultSocket = "/run/weft/agent.sock"

// MaxStdin bounds the CNI configuration that a runtime hands over, in bytes;
// MaxMessage bounds a line of the protocol, in which the configuration is in
// base64.
const (
	MaxStdin   = 1 << 20
	MaxMessage = 2 << 20
)

// SendWindow is how long weft-cni sends ADD, DEL and GC again while the agent
// is away or not ready; ProbeWindow how long it does for CHECK and STATUS,
// which a runtime repeats by itself. AnswerTimeout is how long it waits for an
// answer once the agent has the request; the agent gives up earlier.
const (
	SendWindow    = 10 * time.Second
	ProbeWindow   = 2 * time.Second
	AnswerTimeout = 45 * time.Second
)

// The commands of the CNI specification.
const (
	Add    = "ADD"
	Del    = "DEL"
	Check  = "CHECK"
	GC     = "GC"
	Status = "STATUS"
	Ver    = "VERSION"
)

// Versions are the versions of the CNI specification that are spoken, oldest
// first.
var Versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// Request is what a runtime asked of weft-cni: the environment and the
// standard input, unread.
type Request struct {
	Version int `json:"version"`
	// ID is random and the same when the request is sent again, so that an
	// ADD that was done before the answer got lost is not done twice.
	ID          string `json:"id"`
	Command     string `json:"command"`
	ContainerID string `json:"containerID,omitempty"`
	NetNS       string `json:"netns,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Args        string `json:"args,omitempty"`
	Stdin       []byte `json:"stdin"`
}

// Response is the agent's answer.
type Response struct {
	Version int `json:"version"`
	// Stdout is what weft-cni prints when Error is nil.
	Stdout []byte `json:"stdout,omitempty"`
	Error  *Error `json:"error,omitempty"`
}

// The error codes of the CNI specification.
const (
	IncompatibleVersion uint = 1
	UnsupportedField    uint = 2
	UnknownContainer    uint = 3
	InvalidEnvironment  uint = 4
	IOFailure           uint = 5
	DecodingFailure     uint = 6
	InvalidConfig       uint = 7
	TryAgainLater       uint = 11
	NotAvailable        uint = 50
	LimitedConnectivity uint = 51
)

// Weft's own error codes.
const (
	// KernelFailure: the kernel refused to make or remove the interface.
	KernelFailure uint = 100
	// AddressesExhausted: the node's subnet has no address left.
	AddressesExhausted uint = 101
	// AttachmentExists: ADD for what was added before.
	AttachmentExists uint = 102
	// InterfaceExists: the pod has an interface of that name already.
	InterfaceExists uint = 103
	// DataPlaneFailure: the data plane could not take up the pod.
	DataPlaneFailure uint = 104
	// CheckFailed: CHECK found something other than what ADD made.
	CheckFailed uint = 105
	// JournalFailure: the record of addresses could not be written.
	JournalFailure uint = 106
	// ProtocolFailure: weft-cni and the agent do not understand each other.
	ProtocolFailure uint = 107
	// InvalidPod: the pod's own object asks for what cannot be.
	InvalidPod uint = 108
)

// Error is the error result of the CNI specification.
type Error struct {
	// CNIVersion is the request's own; weft-cni fills it in.
	CNIVersion string `json:"cniVersion"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + ": " + e.Details
}

// Errorf returns an error of the given code. Its message is made of what
// the code means and of the details given.
func Errorf(code uint, format string, args ...any) *Error {
	// What errors.Join put on lines of their own is one for an error result.
	return &Error{Code: code, Msg: meaning[code], Details: strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")}
}

// Undecodable returns the error of a network configuration that encoding/json
// does not take.
func Undecodable(err error) *Error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return Errorf(DecodingFailure, "it is a JSON %s and not an object", wrong.Value)
		}
		return Errorf(DecodingFailure, "the key %q holds a %s and not a %s", wrong.Field, wrong.Value, wrong.Type)
	}
	return Errorf(DecodingFailure, "%v", err)
}

var meaning = map[uint]string{
	IncompatibleVersion: "incompatible CNI version",
	UnsupportedField:    "unsupported field in the network configuration",
	UnknownContainer:    "unknown container",
	InvalidEnvironment:  "invalid environment variable",
	IOFailure:           "input or output failed",
	DecodingFailure:     "the network configuration cannot be decoded",
	InvalidConfig:       "invalid network configuration",
	TryAgainLater:       "try again later",
	NotAvailable:        "pods cannot be networked on this node",
	LimitedConnectivity: "pods on this node may have lost connectivity",
	KernelFailure:       "the interface could not be made or removed",
	AddressesExhausted:  "no address left",
	AttachmentExists:    "the container has this attachment already",
	InterfaceExists:     "interface name already taken",
	DataPlaneFailure:    "the data plane could not take up the pod",
	CheckFailed:         "the attachment is not as ADD left it",
	JournalFailure:      "the journal of addresses could not be written",
	ProtocolFailure:     "weft-cni and the agent do not understand each other",
	InvalidPod:          "the pod asks for what cannot be",
}

// ErrTooLong says that a line is longer than MaxMessage.
var ErrTooLong = errors.New("the message is longer than 2 MiB")

// Write sends a message.
func Write(w io.Writer, message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(line) >= MaxMessage {
		return ErrTooLong
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// Read receives a message. A connection that ends before the line does is
// io.ErrUnexpectedEOF.
func Read(r io.Reader, message any) error {
	line, err := bufio.NewReader(io.LimitReader(r, MaxMessage)).ReadBytes('\n')
	switch {
	case len(line) == MaxMessage && line[len(line)-1] != '\n':
		return ErrTooLong
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	}
	return json.Unmarshal(bytes.TrimSuffix(line, []byte("\n")), message)
}
