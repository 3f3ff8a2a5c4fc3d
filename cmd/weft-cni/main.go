// Command weft-cni is Weft's CNI plug-in: a container runtime runs it, and it
// hands the request to the agent on the node, which does the work. It knows
// nothing of networks. While the agent is away, as for an upgrade, it keeps
// trying.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/weftnet/weft/cni/protocol"
)

const about = `weft-cni is the CNI plug-in of Weft. A container runtime runs it with a request
in the environment and a network configuration on the standard input, and it
hands both to the agent on this node (Container Network Interface, versions
0.3.1 to 1.1.0). It has no use for people: try "weft status".
`

// latest is the version of the specification in which errors are written
// where the request does not say.
var latest = protocol.Versions[len(protocol.Versions)-1]

func main() {
	if os.Getenv("CNI_COMMAND") == "" {
		fmt.Fprint(os.Stderr, about)
		os.Exit(2)
	}
	version, stdout, failure := run(os.Stdin, os.Getenv)
	if failure != nil {
		failure.CNIVersion = version
		// Neither a string nor a number fails to encode.
		stdout, _ = json.MarshalIndent(failure, "", "    ")
	}
	if len(stdout) > 0 {
		if _, err := os.Stdout.Write(append(stdout, '\n')); err != nil {
			fmt.Fprintln(os.Stderr, "weft-cni: write the answer:", err)
			os.Exit(1)
		}
	}
	if failure != nil {
		os.Exit(1)
	}
}

// config is what of the network configuration concerns weft-cni itself.
type config struct {
	CNIVersion string `json:"cniVersion"`
	// Socket is where the agent listens.
	Socket string `json:"socket"`
	// Predecessors are the configurations of plug-ins that worked after weft-cni once.
	Predecessors []json.RawMessage `json:"predecessors"`
}

// run answers a request and says in which version of the specification.
func run(stdin io.Reader, getenv func(string) string) (version string, stdout []byte, failure *protocol.Error) {
	conf := config{CNIVersion: latest, Socket: protocol.DefaultSocket}
	data, err := io.ReadAll(io.LimitReader(stdin, protocol.MaxStdin+1))
	switch {
	case err != nil:
		return latest, nil, protocol.Errorf(protocol.IOFailure, "read the network configuration from the standard input: %v", err)
	case len(data) > protocol.MaxStdin:
		return latest, nil, protocol.Errorf(protocol.IOFailure, "the network configuration on the standard input is longer than %d bytes", protocol.MaxStdin)
	}
	if err := json.Unmarshal(data, &conf); err != nil {
		return latest, nil, protocol.Undecodable(err)
	}
	if !slices.Contains(protocol.Versions, conf.CNIVersion) {
		version = latest
	} else {
		version = conf.CNIVersion
	}
	if getenv("CNI_COMMAND") == protocol.Ver {
		stdout, _ = json.Marshal(struct {
			CNIVersion        string   `json:"cniVersion"`
			SupportedVersions []string `json:"supportedVersions"`
		}{version, protocol.Versions})
		return version, stdout, nil
	}
	req := &protocol.Request{
		Version: protocol.Version, ID: newID(), Command: getenv("CNI_COMMAND"), ContainerID: getenv("CNI_CONTAINERID"),
		NetNS: getenv("CNI_NETNS"), IfName: getenv("CNI_IFNAME"), Args: getenv("CNI_ARGS"), Stdin: data,
	}
	if req.Command == protocol.Del {
		if failure := takeAway(conf.Predecessors, getenv("CNI_PATH")); failure != nil {
			return version, nil, failure
		}
	}
	stdout, failure = send(conf.Socket, req)
	return version, stdout, failure
}

// newID returns an identifier of a request. It need be no secret, only another one
// each time: who reaches the agent's socket is root.
func newID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// send has the agent answer req, and keeps asking while it is away or asks
// for patience.
func send(socket string, req *protocol.Request) ([]byte, *protocol.Error) {
	window := protocol.SendWindow
	if req.Command == protocol.Check || req.Command == protocol.Status {
		window = protocol.ProbeWindow
	}
	deadline := time.Now().Add(window)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		resp, err := exchange(socket, req)
		switch {
		case err == nil && resp.Version != protocol.Version:
			return nil, protocol.Errorf(protocol.ProtocolFailure, "the agent speaks version %d of the protocol and weft-cni version %d: install the weft-cni that came with the agent", resp.Version, protocol.Version)
		case err == nil && (resp.Error == nil || resp.Error.Code != protocol.TryAgainLater):
			return resp.Stdout, resp.Error
		}
		if time.Now().Add(pause).After(deadline) {
			if err == nil {
				return nil, resp.Error
			}
			return nil, away(req.Command, socket, err)
		}
		time.Sleep(pause)
	}
}

// away says that the agent could not be asked.
func away(command, socket string, err error) *protocol.Error {
	code := protocol.TryAgainLater
	if command == protocol.Status {
		code = protocol.NotAvailable
	}
	why := err.Error()
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		why = "nobody listens there: is the agent running?"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		why = "the agent went away before it answered"
	case errors.Is(err, os.ErrDeadlineExceeded):
		why = "the agent does not answer"
	}
	return protocol.Errorf(code, "the agent at %s: %s", socket, why)
}

// exchange sends req once.
func exchange(socket string, req *protocol.Request) (*protocol.Response, error) {
	conn, err := dial(socket, protocol.ProbeWindow)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	conn.deadline = time.Now().Add(protocol.AnswerTimeout)
	sent := protocol.Write(conn, req)
	// An agent with too much to do answers without having read the request.
	var resp protocol.Response
	if err := protocol.Read(conn, &resp); err != nil {
		return nil, errors.Join(err, sent)
	}
	return &resp, nil
}
