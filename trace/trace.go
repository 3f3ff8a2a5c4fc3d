// Package trace is what is told of a probe: a packet that an agent sends from a
// pod's network namespace, to see what the kernels on its way do with it. A
// Watch says which packet to look for, Events are what a node's kernel did with
// it, and Compare holds them against what the interpreter says of the same
// packet. Package kernel below it looks and sends; agents serve both on their
// local socket.
package trace

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/weftnet/weft/plan"
)

// Watch is what a node is asked to look for.
type Watch struct {
	// ID names the probe: 8 to 32 lower-case letters and digits.
	ID          string        `json:"id"`
	Source      netip.Addr    `json:"source"`
	Destination netip.Addr    `json:"destination"`
	Protocol    plan.Protocol `json:"protocol"`
	// SourcePort is the probe's own, or the identifier of its ICMP echo
	// request; 0 looks for any, as after the translation of the source.
	SourcePort uint16 `json:"sourcePort,omitempty"`
	// Port is the destination port, 0 for protocols without ports.
	Port uint16 `json:"port,omitempty"`
	// For bounds the time, at most MostTime.
	For time.Duration `json:"for"`
	// Pod is the pod "namespace/name" that the node is to send the probe from;
	// Host has it sent from the node itself. Both are empty on nodes that only
	// look.
	Pod  string `json:"pod,omitempty"`
	Host bool   `json:"host,omitempty"`
}

// MostTime is the longest that a node looks for a probe.
const MostTime = 30 * time.Second

// Sends reports whether the node is to send the probe, too.
func (w Watch) Sends() bool { return w.Pod != "" || w.Host }

// Validate says what is wrong with a Watch.
func (w Watch) Validate() error {
	ports := w.Protocol.HasPorts()
	echo := w.Protocol == plan.ICMP || w.Protocol == plan.ICMPv6
	switch {
	case len(w.ID) < 8 || len(w.ID) > 32 || !isIdentifier(w.ID):
		return fmt.Errorf("id %q is not 8 to 32 lower-case letters and digits", w.ID)
	case !w.Source.IsValid() || !w.Destination.IsValid() || w.Source.Is4() != w.Destination.Is4():
		return fmt.Errorf("source %s and destination %s are not addresses of one family", w.Source, w.Destination)
	case !ports && !echo:
		return fmt.Errorf("protocol %s cannot be sent: tcp, udp and icmp can", w.Protocol)
	case w.Protocol == plan.SCTP:
		return fmt.Errorf("protocol %s cannot be sent: tcp, udp and icmp can", w.Protocol)
	case echo && (w.Protocol == plan.ICMP) != w.Source.Is4():
		return fmt.Errorf("protocol %s is not of the family of %s", w.Protocol, w.Source)
	case ports != (w.Port != 0):
		return fmt.Errorf("port %d does not fit protocol %s", w.Port, w.Protocol)
	case w.For <= 0 || w.For > MostTime:
		return fmt.Errorf("%s is not between 0 and %s", w.For, MostTime)
	case w.Pod != "" && w.Host:
		return fmt.Errorf("the probe is to be sent from pod %s and from the node", w.Pod)
	}
	return nil
}

func isIdentifier(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// Kind says what an Event tells.
type Kind string

// The kinds of Events.
const (
	// Watching: from now on the node looks for the probe; SourcePort is set
	// where the node is to send it.
	Watching Kind = "watching"
	// Seen: the packet passed a device.
	Seen Kind = "seen"
	// Traced: from the hook on the kernel tells which rules of nftables decide about
	// the packet.
	Traced Kind = "traced"
	// Decided: a rule, or the policy of a chain, decided about the packet.
	Decided Kind = "decided"
	// Untraced: what Text names is on the node, may have dropped the packet, and the
	// kernel does not tell whether it did. With a Hook it comes there before the
	// packet is Traced, with a Device for what comes in on that alone; without a
	// Hook it comes behind.
	Untraced Kind = "untraced"
	// Answered: what came back to the sender, as it sees it.
	Answered Kind = "answered"
	// Unsent: the node could not send the probe.
	Unsent Kind = "unsent"
	// Ended: the node was asked to end, and has told all that there was.
	Ended Kind = "ended"
	// Failed: the node has missed something, and looks no more.
	Failed Kind = "failed"
)

// Event is one thing that a node tells, a line of JSON each.
type Event struct {
	Kind Kind      `json:"kind"`
	Time time.Time `json:"time"`
	Node string    `json:"node,omitempty"`
	// Source and SourcePort are those of a Watching node that sends.
	Source     netip.Addr `json:"source,omitzero"`
	SourcePort uint16     `json:"sourcePort,omitempty"`

	// Reply says that it is a packet back to the sender, not the probe.
	Reply bool `json:"reply,omitempty"`
	// Device is where the packet was Seen, and Out that it left there. Tunnel says
	// that it was within a packet of the overlay, also where that was Decided
	// about.
	Device string `json:"device,omitempty"`
	Out    bool   `json:"out,omitempty"`
	Tunnel bool   `json:"tunnel,omitempty"`
	// Encapsulates says that what leaves on the device goes on within packets of
	// an overlay, so that it has not left the node yet.
	Encapsulates bool `json:"encapsulates,omitempty"`
	// Endpoint is the pod, "namespace/name", that the device leads to, or none.
	Endpoint string `json:"endpoint,omitempty"`

	// Family, Table, Chain and Hook are where it was Decided: the hook is that
	// by which packets came to the chain. Rule is the rule's comment or text,
	// empty for the policy of the chain.
	Family string `json:"family,omitempty"`
	Table  string `json:"table,omitempty"`
	Chain  string `json:"chain,omitempty"`
	Hook   string `json:"hook,omitempty"`
	Rule   string `json:"rule,omitempty"`
	// Verdict is "accept", "drop" or what else the rule did: "jump", "goto".
	Verdict string `json:"verdict,omitempty"`
	// Translates says that the rule gave the packet other addresses. To is where it
	// went by then, where that is another destination than the probe's; the port is
	// 0 for protocols without ports. At hook postrouting Device is that which it was
	// to leave on then.
	Translates bool           `json:"translates,omitempty"`
	To         netip.AddrPort `json:"to,omitzero"`

	// Text says what came back, or what failed, or what is Untraced.
	Text string `json:"text,omitempty"`
	// Answer is what came back, of an Answered event.
	Answer Answer `json:"answer,omitempty"`
}

// Answer is what came back to the sender.
type Answer string

// The answers.
const (
	// Accepted: somebody listens.
	Accepted Answer = "accepted"
	// Refused: the destination was reached, and nobody listens there.
	Refused Answer = "refused"
	// Unreachable: somebody on the way said that the destination cannot be
	// reached.
	Unreachable Answer = "unreachable"
	// Silence: nothing came back in time.
	Silence Answer = "silence"
)
