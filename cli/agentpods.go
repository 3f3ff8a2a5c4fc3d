package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/trace"
)

// What the chart calls the agents' pods and what runs in them.
const (
	agentContainer = "agent"
	agentProgram   = "/weft-agent"
)

// execLimit is when a command that follows ends, to be started again: nothing
// tells a command in a pod that its reader has gone.
const execLimit = 10 * time.Minute

var agentLabels = map[string]string{"app.kubernetes.io/name": "weft", "app.kubernetes.io/component": "agent"}

// agentPods returns the agents that run as pods, in the order of their nodes.
func agentPods(ctx context.Context, reg registry.Registry, cluster *daemon.Cluster) ([]askedAgent, error) {
	pods, _, err := reg.List(ctx, api.Pod)
	if err != nil {
		return nil, err
	}
	var agents []askedAgent
	for _, o := range pods {
		p, ok := o.(*corev1.Pod)
		if !ok || p.Namespace != cluster.Namespace || p.Status.Phase != corev1.PodRunning || !isAgent(p) {
			continue
		}
		exec := func(ctx context.Context, args ...string) (io.ReadCloser, error) {
			return execInPod(ctx, cluster.REST, registry.KeyOf(p), agentContainer, append([]string{agentProgram}, args...))
		}
		tell := func(flag string) func(context.Context, string) error {
			return func(ctx context.Context, id string) error {
				answer, err := exec(ctx, "trace", flag, id)
				if err != nil {
					return err
				}
				defer answer.Close()
				_, err = io.Copy(io.Discard, answer)
				return err
			}
		}
		agents = append(agents, askedAgent{node: p.Spec.NodeName, open: func(ctx context.Context, follow bool) (io.ReadCloser, error) {
			command := []string{"drops", "-o", "json"}
			if follow {
				command = append(command, "-f", "--for", execLimit.String())
			}
			return exec(ctx, command...)
		}, trace: func(ctx context.Context, w trace.Watch) (io.ReadCloser, error) {
			watch, err := json.Marshal(w)
			if err != nil {
				return nil, err
			}
			return exec(ctx, "trace", "--watch", string(watch))
		}, send: tell("--send"), end: tell("--end"), counts: func(ctx context.Context, service string) (io.ReadCloser, error) {
			return exec(ctx, "service", service)
		}})
	}
	return withoutAgents(ctx, reg, agents)
}

// withoutAgents adds the nodes on which no agent's pod runs, as who asks wants to
// know of these, too.
func withoutAgents(ctx context.Context, reg registry.Registry, agents []askedAgent) ([]askedAgent, error) {
	nodes, _, err := reg.List(ctx, api.Node)
	if err != nil {
		return nil, err
	}
	for _, o := range nodes {
		node := o.GetName()
		if slices.ContainsFunc(agents, func(a askedAgent) bool { return a.node == node }) {
			continue
		}
		missing := errors.New("no agent's pod runs there (see: weft status)")
		agents = append(agents, askedAgent{node: node,
			open:  func(context.Context, bool) (io.ReadCloser, error) { return nil, missing },
			trace: func(context.Context, trace.Watch) (io.ReadCloser, error) { return nil, missing },
			send:  func(context.Context, string) error { return missing },
			end:   func(context.Context, string) error { return missing },

			counts: func(context.Context, string) (io.ReadCloser, error) { return nil, missing }})
	}
	slices.SortStableFunc(agents, func(a, b askedAgent) int { return strings.Compare(a.node, b.node) })
	return agents, nil
}

func isAgent(p *corev1.Pod) bool {
	for name, value := range agentLabels {
		if p.Labels[name] != value {
			return false
		}
	}
	return true
}

// execProtocol is the one in which an API server passes on what a command
// writes: the first byte of a message is the number of a stream.
const execProtocol = "v4.channel.k8s.io"

// The streams of execProtocol.
const (
	execStdout = 1
	execStderr = 2
	execStatus = 3
)

// execInPod runs a command in a container of a pod and returns its standard
// output, whose end is an error where the command failed. Closing it, or the
// end of ctx, leaves the command alone.
func execInPod(ctx context.Context, config *rest.Config, pod registry.Key, container string, command []string) (io.ReadCloser, error) {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	base = base.JoinPath("api/v1/namespaces", pod.Namespace, "pods", pod.Name, "exec")
	base.RawQuery = url.Values{"container": {container}, "command": command, "stdout": {"true"}, "stderr": {"true"}}.Encode()
	dial := &upgrade{dialer: websocket.Dialer{TLSClientConfig: tls, Proxy: http.ProxyFromEnvironment, Subprotocols: []string{execProtocol}}}
	if config.Proxy != nil {
		dial.dialer.Proxy = config.Proxy
	}
	// The wrappers give the request what says who asks.
	transport, err := rest.HTTPWrappersForConfig(config, dial)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.String(), nil)
	if err != nil {
		return nil, err
	}
	if _, err := transport.RoundTrip(req); err != nil {
		return nil, fmt.Errorf("exec in pod %s: %w", pod, err)
	}
	r, w := io.Pipe()
	stop := context.AfterFunc(ctx, func() { dial.conn.Close() })
	go func() {
		defer stop()
		defer dial.conn.Close()
		if err := pass(dial.conn, w); err != nil {
			err = fmt.Errorf("exec in pod %s: %w", pod, err)
			w.CloseWithError(err)
			return
		}
		w.Close()
	}()
	return r, nil
}

// upgrade is a round trip that leaves a connection behind.
type upgrade struct {
	dialer websocket.Dialer
	conn   *websocket.Conn
}

// RoundTrip implements http.RoundTripper.
func (u *upgrade) RoundTrip(req *http.Request) (*http.Response, error) {
	to := *req.URL
	to.Scheme = map[string]string{"http": "ws", "https": "wss"}[to.Scheme]
	conn, res, err := u.dialer.DialContext(req.Context(), to.String(), req.Header)
	if err != nil && res != nil {
		return nil, refusal(res, err)
	}
	u.conn = conn
	return res, err
}

// refusal is what an API server says that does not upgrade a connection.
func refusal(res *http.Response, err error) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return errors.New(status.Message)
	}
	return fmt.Errorf("%w: %s", err, res.Status)
}

// pass writes a command's standard output to w until the command ends, and
// returns why it failed, if it did.
func pass(conn *websocket.Conn, w io.Writer) error {
	var errs bytes.Buffer
	for {
		_, message, err := conn.ReadMessage()
		if websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(message) < 2 {
			continue
		}
		switch stream, data := message[0], message[1:]; stream {
		case execStdout:
			if _, err := w.Write(data); err != nil {
				return err
			}
		case execStderr:
			if errs.Len() < 4096 {
				errs.Write(data)
			}
		case execStatus:
			var status metav1.Status
			if err := json.Unmarshal(data, &status); err != nil {
				return err
			}
			if status.Status != metav1.StatusSuccess {
				return fmt.Errorf("%s: %s", status.Message, strings.TrimSpace(errs.String()))
			}
			return nil
		}
	}
}
