package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxAddresses is at how many addresses a keeper listens. The kernel takes 253 files with a
// message.
const maxAddresses = 64

// maxMessage is how long a message may be, in bytes.
const maxMessage = 64 << 10

// sendTime is how long a message may wait for room. Who does not read is as good as gone.
const sendTime = 2 * time.Second

// message is what is said over Unix sockets that keep messages apart: by whoever asks a
// keeper, by a keeper that takes over from another, and between a keeper and its server.
type message struct {
	// Ask asks a keeper for its State, which it then says.
	Ask   bool   `json:"ask,omitempty"`
	State *State `json:"state,omitempty"`
	// Take asks a keeper for its sockets. Serving tells it that they are served.
	Take    bool `json:"take,omitempty"`
	Serving bool `json:"serving,omitempty"`
	// Sockets are addresses, for each of which the message has two files: the socket for UDP
	// and the one for TCP. A keeper says them once; to a server it adds them to those that it has.
	Sockets *[]netip.AddrPort `json:"sockets,omitempty"`
	// Close are addresses whose sockets are to be closed.
	Close []netip.AddrPort `json:"close,omitempty"`
	// Question is a number that the server is to put into its next report.
	Question uint64  `json:"question,omitempty"`
	Report   *Report `json:"report,omitempty"`
}

// Report is what a server says of itself to its keeper.
type Report struct {
	// Answer is the number of the last question.
	Answer uint64 `json:"answer,omitempty"`
	// Addresses are where the server is to be reached; nil as long as it does not know.
	Addresses []netip.Addr `json:"addresses"`
	// Serves are those sockets that it reads.
	Serves []netip.AddrPort `json:"serves,omitempty"`
	// Problem is what keeps it from answering as it should; empty if nothing does.
	Problem string `json:"problem,omitempty"`
}

// send says m, and hands over files with it.
func send(c *net.UnixConn, m message, files ...int) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("a message of %d bytes", len(data))
	}
	var control []byte
	if len(files) > 0 {
		control = unix.UnixRights(files...)
	}
	if err := c.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(data, control, nil)
	return err
}

// receive returns what the other side says, and the files that come with it, which are the
// caller's to close. It fails where the files are not those that the message speaks of.
func receive(c *net.UnixConn) (m message, files []int, err error) {
	data, control := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*2*maxAddresses))
	n, nc, flags, _, err := c.ReadMsgUnix(data, control)
	if err != nil {
		return message{}, nil, err
	}
	files, err = rights(control[:nc])
	switch {
	case err != nil:
	case n == 0:
		err = net.ErrClosed
	case flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0:
		err = errors.New("the message is too long")
	default:
		err = json.Unmarshal(data[:n], &m)
	}
	var addresses []netip.AddrPort
	if m.Sockets != nil {
		addresses = *m.Sockets
	}
	if err == nil && len(files) != 2*len(addresses) {
		err = fmt.Errorf("%d files came for %d addresses", len(files), len(addresses))
	}
	if err != nil {
		closeAll(files)
		return message{}, nil, err
	}
	return m, files, nil
}

// rights returns the files in a control message.
func rights(control []byte) (files []int, err error) {
	if len(control) == 0 {
		return nil, nil
	}
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	for _, c := range all {
		fds, err := unix.ParseUnixRights(&c)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
		files = append(files, fds...)
	}
	return files, nil
}

func closeAll(files []int) {
	for _, fd := range files {
		unix.Close(fd)
	}
}
