package kernel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/trace"
)

// Types of a trace message (NFT_TRACETYPE_… in
// linux/netfilter/nf_tables.h).
const (
	tracePolicy = 1
	traceRule   = 3
)

// headerLength is that of netfilter's header, which begins each of its messages.
const headerLength = 4

// decision is a message of the kernel about a traced packet.
type decision struct {
	id                   uint32
	family               byte
	kind                 uint32
	table, chain, target string
	handle               uint64
	verdict              int32
	policy               uint32
	// header and transport begin the packet, nil where the message does not tell;
	// it tells once in each chain of a hook.
	header, transport []byte
	// out is the index of the device that it is to leave on, which is told beside
	// the headers, 0 where that is not decided yet.
	out uint32
}

// parseDecision reads a trace message, with the header of netfilter.
func parseDecision(m netlink.Message) (decision, bool) {
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE || len(m.Data) < headerLength {
		return decision{}, false
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[headerLength:])
	if err != nil {
		return decision{}, false
	}
	ad.ByteOrder = binary.BigEndian
	d := decision{family: m.Data[0]}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_TRACE_ID:
			d.id = ad.Uint32()
		case unix.NFTA_TRACE_TABLE:
			d.table = ad.String()
		case unix.NFTA_TRACE_CHAIN:
			d.chain = ad.String()
		case unix.NFTA_TRACE_RULE_HANDLE:
			d.handle = ad.Uint64()
		case unix.NFTA_TRACE_TYPE:
			d.kind = ad.Uint32()
		case unix.NFTA_TRACE_POLICY:
			d.policy = ad.Uint32()
		case unix.NFTA_TRACE_NETWORK_HEADER:
			d.header = ad.Bytes()
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			d.transport = ad.Bytes()
		case unix.NFTA_TRACE_OIF:
			d.out = ad.Uint32()
		case unix.NFTA_TRACE_VERDICT:
			ad.Nested(func(v *netlink.AttributeDecoder) error {
				v.ByteOrder = binary.BigEndian
				for v.Next() {
					switch v.Type() {
					case unix.NFTA_VERDICT_CODE:
						d.verdict = int32(v.Uint32())
					case unix.NFTA_VERDICT_CHAIN:
						d.target = v.String()
					}
				}
				return nil
			})
		}
	}
	return d, ad.Err() == nil && d.table != "" && d.chain != ""
}

// word is what the kernel did.
func (d decision) word() string {
	if d.kind == tracePolicy {
		return map[uint32]string{0: "drop", 1: "accept"}[d.policy]
	}
	switch d.verdict {
	case 0:
		return "drop"
	case 1:
		return "accept"
	case unix.NFT_JUMP:
		return "jump"
	case unix.NFT_GOTO:
		return "goto"
	case unix.NFT_RETURN:
		return "return"
	case unix.NFT_CONTINUE:
		return "continue"
	}
	return fmt.Sprintf("verdict %d", d.verdict)
}

// ruleset finds names for what trace messages tell in numbers. What it has read
// it keeps until the ruleset changes.
type ruleset struct {
	conn *nftables.Conn
	// asked answers what conn does not.
	asked *netlink.Conn
	of    uint32
	// chains is nil before it is read.
	chains map[chainKey]hooked
	rules  map[chainKey]map[uint64]string
	// translating are the rules that give packets other addresses.
	translating map[chainKey]map[uint64]bool
}

type chainKey struct {
	family       byte
	table, chain string
}

// hooked says how packets come to a chain. The hook is empty where others jump to it.
type hooked struct {
	hook     string
	priority int32
	// devices are those of hooks ingress and egress; a * at the end stands for
	// any end.
	devices []string
}

func openRuleset() (r *ruleset, err error) {
	r = new(ruleset)
	if r.conn, err = nftables.New(nftables.AsLasting()); err != nil {
		return nil, err
	}
	if r.asked, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *ruleset) close() {
	_ = r.conn.CloseLasting()
	if r.asked != nil {
		r.asked.Close()
	}
}

// refresh forgets what was read of a ruleset that is another by now.
func (r *ruleset) refresh() error {
	answers, err := r.asked.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return fmt.Errorf("ask for the generation of the ruleset: %w", err)
	}
	if len(answers) != 1 || len(answers[0].Data) < headerLength {
		return errors.New("ask for the generation of the ruleset: the kernel does not tell")
	}
	ad, err := netlink.NewAttributeDecoder(answers[0].Data[headerLength:])
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	now := r.of
	for ad.Next() {
		if ad.Type() == unix.NFTA_GEN_ID {
			now = ad.Uint32()
		}
	}
	if r.rules == nil || now != r.of {
		r.of, r.chains = now, nil
		r.rules, r.translating = map[chainKey]map[uint64]string{}, map[chainKey]map[uint64]bool{}
	}
	return ad.Err()
}

// hook returns that by which packets come to a chain, "" where others jump to it.
func (r *ruleset) hook(k chainKey) (string, error) {
	if err := r.readChains(); err != nil {
		return "", err
	}
	c, known := r.chains[k]
	if !known {
		return "", fmt.Errorf("chain %s in table %s %s, which decided, is gone: ask again", k.chain, familyName(k.family), k.table)
	}
	return c.hook, nil
}

// Attributes of a chain's hook that package unix does not have
// (linux/netfilter/nf_tables.h).
const (
	hookDevices  = 4 // NFTA_HOOK_DEVS
	deviceName   = 1 // NFTA_DEVICE_NAME
	devicePrefix = 2 // NFTA_DEVICE_PREFIX
)

// readChains reads the chains of all families.
func (r *ruleset) readChains() error {
	if r.chains != nil {
		return nil
	}
	answers, err := r.asked.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Flags: netlink.Request | netlink.Dump},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return fmt.Errorf("list the chains of nftables: %w", err)
	}
	chains := make(map[chainKey]hooked)
	for _, m := range answers {
		k, c, err := parseChain(m)
		if err != nil {
			return fmt.Errorf("list the chains of nftables: %w", err)
		}
		chains[k] = c
	}
	r.chains = chains
	return nil
}

// parseChain reads a message about a chain, with the header of netfilter.
func parseChain(m netlink.Message) (k chainKey, c hooked, err error) {
	if len(m.Data) < headerLength {
		return k, c, fmt.Errorf("a message of %d bytes is too short", len(m.Data))
	}
	k.family = m.Data[0]
	ad, err := netlink.NewAttributeDecoder(m.Data[headerLength:])
	if err != nil {
		return k, c, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			k.table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			k.chain = ad.String()
		case unix.NFTA_CHAIN_HOOK:
			ad.Nested(func(h *netlink.AttributeDecoder) error {
				h.ByteOrder = binary.BigEndian
				for h.Next() {
					switch h.Type() {
					case unix.NFTA_HOOK_HOOKNUM:
						c.hook = hookName(k.family, h.Uint32())
					case unix.NFTA_HOOK_PRIORITY:
						c.priority = int32(h.Uint32())
					case hookDevices:
						h.Nested(func(d *netlink.AttributeDecoder) error {
							for d.Next() {
								switch d.Type() {
								case deviceName:
									c.devices = append(c.devices, d.String())
								case devicePrefix:
									c.devices = append(c.devices, d.String()+"*")
								}
							}
							return nil
						})
					}
				}
				return nil
			})
		}
	}
	return k, c, ad.Err()
}

// hookName is what nft calls a hook (NF_NETDEV_… and NF_INET_… in
// linux/netfilter.h; those of bridges have the numbers of inet).
func hookName(family byte, number uint32) string {
	names := []string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}
	if family == unix.NFPROTO_NETDEV {
		names = []string{"ingress", "egress"}
	}
	if int(number) < len(names) {
		return names[number]
	}
	return fmt.Sprintf("hook %d", number)
}

// rule says which rule has a handle: by its comment, or else as the program nft
// shows it, where that is.
func (r *ruleset) rule(ctx context.Context, k chainKey, handle uint64) string {
	rules, read := r.rules[k]
	if !read {
		rules = r.comments(k)
		r.rules[k] = rules
	}
	if rules[handle] == "" {
		for h, text := range texts(ctx, k) {
			if rules[h] == "" {
				rules[h] = text
			}
		}
		if rules[handle] == "" {
			rules[handle] = fmt.Sprintf("the rule with handle %d", handle)
		}
	}
	return rules[handle]
}

// comments returns those of a chain's rules, by their handles.
func (r *ruleset) comments(k chainKey) map[uint64]string {
	comments := make(map[uint64]string)
	r.translating[k] = make(map[uint64]bool)
	rules, err := r.conn.GetRules(&nftables.Table{Name: k.table, Family: nftables.TableFamily(k.family)}, &nftables.Chain{Name: k.chain})
	if err != nil {
		return comments // handles will do
	}
	for _, rule := range rules {
		r.translating[k][rule.Handle] = slices.ContainsFunc(rule.Exprs, isTranslation)
		if comment := userdata.Get(rule.UserData, userdata.TypeComment); len(comment) > 0 {
			comments[rule.Handle] = strings.TrimRight(string(comment), "\x00")
		}
	}
	return comments
}

// translates reports whether a rule that was read gives packets other addresses.
func (r *ruleset) translates(k chainKey, handle uint64) bool { return r.translating[k][handle] }

// isTranslation reports whether a part of a rule gives packets other addresses.
// Those of iptables are called as there.
func isTranslation(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Masq, *expr.NAT, *expr.Redir:
		return true
	case *expr.Target:
		return slices.Contains([]string{"MASQUERADE", "SNAT", "DNAT", "NETMAP", "REDIRECT"}, e.Name)
	}
	return false
}

// nftTime bounds how long the program nft may take.
const nftTime = 2 * time.Second

// texts returns a chain's rules as nft shows them, by their handles.
func texts(ctx context.Context, k chainKey) map[uint64]string {
	ctx, cancel := context.WithTimeout(ctx, nftTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nft", "-a", "list", "chain", familyName(k.family), k.table, k.chain)
	cmd.WaitDelay = nftTime / 10 // it may have children
	out, err := cmd.Output()
	if err != nil {
		return nil
	}
	rules := make(map[uint64]string)
	for line := range strings.Lines(string(out)) {
		text, number, _ := strings.Cut(strings.TrimSpace(line), " # handle ")
		if handle, err := strconv.ParseUint(number, 10, 64); err == nil {
			rules[handle] = text
		}
	}
	return rules
}

func familyName(family byte) string {
	switch family {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	}
	return fmt.Sprint(family)
}

// destination returns where the packet goes that a message shows. Not all do.
func (o *Watching) destination(d decision) (netip.AddrPort, bool) {
	var to netip.Addr
	switch w := o.watch; {
	case w.Destination.Is4() && len(d.header) >= header4 && d.header[0]>>4 == 4:
		to = netip.AddrFrom4([4]byte(d.header[16:20]))
	case w.Destination.Is6() && len(d.header) >= header6 && d.header[0]>>4 == 6:
		to = netip.AddrFrom16([16]byte(d.header[24:40]))
	default:
		return netip.AddrPort{}, false
	}
	switch {
	case !o.watch.Protocol.HasPorts():
		return netip.AddrPortFrom(to, 0), true
	case len(d.transport) < 4:
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(to, binary.BigEndian.Uint16(d.transport[2:])), true
}

// readDecisions calls f with what rules decide about the probe. Others' packets
// may be traced as well, and the kernel tells of all of them.
func (o *Watching) readDecisions(ctx context.Context, f func(trace.Event)) error {
	type packet struct {
		reply, tunnel bool
		hook          string
		// headers are those that it came with.
		headers []byte
		// to is where it goes by now, where that is not the probe's destination.
		to netip.AddrPort
		// out is the device that it is to leave on.
		out uint32
	}
	table := tablePrefix + o.watch.ID
	packets := make(map[uint32]*packet)
	return o.each(ctx, o.traces, func() (own bool, err error) {
		messages, err := o.traces.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return false, errors.New("some of what the kernel decided was lost, as it tells more than can be read: ask again")
		case err != nil:
			return false, fmt.Errorf("read what the kernel decides: %w", err)
		}
		for _, m := range messages {
			d, ok := parseDecision(m)
			if !ok {
				continue
			}
			// The kernel gives packets that come to lie in the same memory the same
			// number. The rule that begins a trace tells which it is.
			p := packets[d.id]
			if strings.HasPrefix(d.table, tablePrefix) {
				switch headers := slices.Concat(d.header, d.transport); {
				case d.kind != traceRule || d.word() != "accept":
				case d.table == table:
					own = true
					p := &packet{reply: strings.HasSuffix(d.chain, replySuffix), tunnel: strings.HasPrefix(d.chain, tunnelPrefix), headers: headers}
					p.hook = strings.TrimSuffix(strings.TrimPrefix(d.chain, tunnelPrefix), replySuffix)
					packets[d.id] = p
					f(trace.Event{Kind: trace.Traced, Time: time.Now(), Reply: p.reply, Tunnel: p.tunnel, Hook: p.hook})
				case p != nil && !bytes.Equal(p.headers, headers):
					delete(packets, d.id) // another probe's
				}
				continue
			}
			if p == nil {
				continue
			}
			own = true
			if to, ok := o.destination(d); ok && !p.reply && !p.tunnel {
				p.out = d.out
				if p.to = to; to == netip.AddrPortFrom(o.watch.Destination, o.watch.Port) {
					p.to = netip.AddrPort{}
				}
			}
			// Of rules that decide nothing there are many.
			if d.kind == traceRule && d.verdict == unix.NFT_CONTINUE || d.kind != traceRule && d.kind != tracePolicy {
				continue
			}
			if err := o.names.refresh(); err != nil {
				return own, err
			}
			k := chainKey{d.family, d.table, d.chain}
			hook, err := o.names.hook(k)
			if err != nil {
				return own, err
			}
			p.hook = cmp.Or(hook, p.hook)
			e := trace.Event{Kind: trace.Decided, Time: time.Now(), Reply: p.reply, Tunnel: p.tunnel, Family: familyName(d.family),
				Table: d.table, Chain: d.chain, Hook: p.hook, Verdict: d.word(), To: p.to}
			if p.to.IsValid() && p.hook == "postrouting" {
				if i, err := net.InterfaceByIndex(int(p.out)); err == nil { // it may be gone
					e.Device = i.Name
				}
			}
			if d.kind == traceRule {
				e.Rule = o.names.rule(ctx, k, d.handle)
				e.Translates = o.names.translates(k, d.handle)
			}
			f(e)
		}
		return own, nil
	})
}
