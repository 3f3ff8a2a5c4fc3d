package linux

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/profile"
	"github.com/weftnet/weft/plan"
)

const (
	// logRate is how many packets are told of in a second, at most, and in a
	// burst: no pod can keep an agent busy with packets that are denied.
	logRate = 100
	// logLength is how much of a packet is told, in bytes.
	logLength = 256
)

// tell hands packets to who follows. Where nobody does, nothing is done.
func (r *ruleset) tell(prefix string) []expr.Any {
	return []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: logRate, Unit: expr.LimitTimeSecond, Burst: logRate},
		&expr.Log{
			Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
			Group: r.stamps.LogGroup, Snaplen: logLength, Data: []byte(prefix),
		},
	}
}

// Denied counts denials; see datapath.Observer.
func (d *DataPlane) Denied() (map[plan.VerdictKey]uint64, error) {
	p := d.enforced.Load()
	if p == nil || !profile.Policed(p) {
		return map[plan.VerdictKey]uint64{}, nil
	}
	var counts map[nft.Element]uint64
	err := d.in(func() (err error) {
		set := policyRules(d.stamps, false).Sets[profileVerdicts]
		if _, counts, err = nft.ReadElements(set.In(d.stamps.PolicyTable, profileVerdicts)); errors.Is(err, unix.ENOENT) {
			err = nil // the table has gone, or not come yet
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return attribute(p, counts), nil
}

// attribute says which verdicts have denied what elements counted. What peers
// share that have the same verdicts of the same origin, the first one gets.
func attribute(p *plan.Plan, counts map[nft.Element]uint64) map[plan.VerdictKey]uint64 {
	denied := map[plan.VerdictKey]uint64{}
	if len(counts) == 0 {
		return denied
	}
	seen := map[string]bool{}
	for _, of := range profile.Peers(p) {
		for _, one := range []*profile.Profile{of.Own, of.Like} {
			if one == nil || seen[one.ID] {
				continue
			}
			seen[one.ID] = true
			for _, r := range one.Ranges {
				if n := counts[beginOf(one, r)]; n > 0 && !r.Allow {
					denied[r.Key] += n
				}
			}
		}
	}
	return denied
}

// Follow tells of packets that are denied; see datapath.Observer. One can
// follow at a time.
func (d *DataPlane) Follow(ctx context.Context, f func(datapath.Drop)) error {
	var conn *netlink.Conn
	var links *vnetlink.Handle
	err := d.in(func() (err error) {
		if links, err = vnetlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("open a route netlink socket: %w", err)
		}
		if conn, err = openLog(d.stamps.LogGroup, logLength); err != nil {
			links.Close()
		}
		return err
	})
	if err != nil {
		return err
	}
	defer links.Close()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	names := map[int]string{0: ""} // no interface is where the node's own packets come from
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue // more came than there was room for
		case err != nil:
			return fmt.Errorf("read what is logged: %w", err)
		}
		for _, m := range messages {
			entry, ok := parseLogMessage(m.Data)
			if !ok {
				continue
			}
			index := entry.link()
			name, known := names[index]
			if !known {
				l, err := links.LinkByIndex(index)
				if err != nil {
					continue // the endpoint has gone
				}
				name = l.Attrs().Name
				names[index] = name
			}
			f(datapath.Drop{
				Time: time.Now(), Reason: entry.reason, Direction: entry.direction, Interface: name, Network: plan.DefaultNetwork, Peer: entry.peer,
				Source: entry.packet.source.Addr(), Destination: entry.packet.destination.Addr(), Protocol: entry.packet.protocol,
				SourcePort: entry.packet.source.Port(), Port: entry.packet.destination.Port(),
			})
		}
	}
}
