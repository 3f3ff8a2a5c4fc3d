// Package unixhttp asks HTTP servers on Unix sockets, as agents have one.
package unixhttp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Transport connects to a socket, whatever the host in a URL is.
func Transport(socket string) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
}

// Ask sends an agent a request on a connection of its own, and returns the body
// of the answer. Any status but 200 is an error with what the agent says.
func Ask(ctx context.Context, socket, method, path string, body []byte) (io.ReadCloser, error) {
	transport := Transport(socket)
	transport.DisableKeepAlives = true
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the agent at %s: %w", socket, err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		message, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return nil, fmt.Errorf("the agent at %s: %s: %s", socket, res.Status, strings.TrimSpace(string(message)))
	}
	return res.Body, nil
}
