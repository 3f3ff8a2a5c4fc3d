// Package counts is what nodes tell of what became of what was sent to a Service: how many
// connections its frontends and backends were given, and what was refused and dropped.
//
// An agent counts for the frontends and backends of its own plan, and answers on its local
// socket. What is not in an answer is not counted there, which is not the same as nothing.
package counts

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/weftnet/weft/internal/unixhttp"
)

// Path is where an agent serves a Report, of the Service that ServiceParameter names.
const (
	Path             = "/services"
	ServiceParameter = "service"
)

// Report is what a node has counted of a Service.
type Report struct {
	Frontends []Frontend `json:"frontends"`
	Backends  []Backend  `json:"backends"`
}

// Frontend is what became of what was sent to one.
type Frontend struct {
	Address netip.Addr `json:"address"`
	// Port is with its protocol, as "80/tcp"; empty for all that is no other frontend's.
	Port string `json:"port,omitempty"`
	// From is "inside" or "outside", empty for both.
	From string `json:"from,omitempty"`
	Outcome
}

// Outcome is what became of what was sent.
type Outcome struct {
	// Given are new connections that were given a backend, and, packet by packet, what was given one and then dropped.
	Given uint64 `json:"given"`
	// Refused are packets whose sender was told that there is no backend, and Dropped those
	// that were dropped as there is none.
	Refused uint64 `json:"refused"`
	Dropped uint64 `json:"dropped"`
	// ForOthers are packets that were dropped as their sender may not use the address.
	ForOthers uint64 `json:"forOthers"`
}

// Plus is both together.
func (o Outcome) Plus(p Outcome) Outcome {
	return Outcome{o.Given + p.Given, o.Refused + p.Refused, o.Dropped + p.Dropped, o.ForOthers + p.ForOthers}
}

// Backend is how many new connections one was given.
type Backend struct {
	Set   string         `json:"set"`
	At    netip.AddrPort `json:"at"`
	Given uint64         `json:"given"`
}

// Open asks the agent with a local socket for a Service, "namespace/name". What is read is a Report, as
// Read reads it.
func Open(ctx context.Context, socket, service string) (io.ReadCloser, error) {
	return unixhttp.Ask(ctx, socket, http.MethodGet, Path+"?"+url.Values{ServiceParameter: {service}}.Encode(), nil)
}

// maxReport is how much of an answer is read, in bytes: more than the largest Service has. A
// node that somebody else has taken may send anything.
const maxReport = 16 << 20

// Read reads a Report.
func Read(r io.Reader) (Report, error) {
	var report Report
	err := json.NewDecoder(io.LimitReader(r, maxReport)).Decode(&report)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the agent's answer is not whole")
	}
	return report, err
}
