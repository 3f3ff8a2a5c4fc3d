package linux

import (
	"errors"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/nft"
)

const (
	// droppedPrefix begins the name of the set that counts what is dropped for a
	// reason: interface -> packets. Elements come with the first packet.
	droppedPrefix = "dropped-"
)

// drop returns where a rule goes with what it drops for a reason: a chain that
// tells who follows of some packets, counts all by the interface that they came
// from, and drops them.
func (r *ruleset) drop(reason datapath.Reason) []expr.Any {
	return r.count(reason, expr.MetaKeyIIFNAME, nft.Verdict{Kind: expr.VerdictDrop})
}

// count returns where a rule goes with what is told and counted for a reason,
// by one of its interfaces, before the verdict.
func (r *ruleset) count(reason datapath.Reason, by expr.MetaKey, end nft.Verdict) []expr.Any {
	return nft.Decide(nft.GoTo(r.counting(droppedPrefix+string(reason), reason, by, end)))
}

// counting adds a chain of a name that tells and counts packets for a reason, before the
// verdict.
func (r *ruleset) counting(chain string, reason datapath.Reason, by expr.MetaKey, end nft.Verdict) string {
	name := droppedPrefix + string(reason)
	if _, ok := r.Chains[chain]; !ok {
		r.Set(name, nft.Set{Key: nftables.TypeIFName, Timeout: true, Dynamic: true})
		c := r.Chain(chain)
		c.Add("tell who follows", r.tell(string(reason)))
		c.Add("count by interface", []expr.Any{
			&expr.Meta{Key: by, Register: 1},
			&expr.Dynset{SrcRegKey: 1, SetName: name, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}},
		}, nft.Decide(end))
		c.Add("what no interface could be counted for", nft.Count(), nft.Decide(end))
	}
	return chain
}

// Dropped counts what was dropped; see datapath.Observer.
func (d *DataPlane) Dropped() (map[datapath.Dropped]uint64, error) {
	dropped := map[datapath.Dropped]uint64{}
	err := d.in(func() error {
		for _, reason := range datapath.Reasons {
			in := []string{d.stamps.Table}
			switch reason {
			case datapath.Ended:
				in = []string{d.stamps.PolicyTable}
			case datapath.TooMany:
				in = append(in, d.stamps.ServiceTable)
			case datapath.NoQuestion, datapath.NoBackend, datapath.NotForClient, datapath.Unfitting:
				in = []string{d.stamps.ServiceTable}
			}
			for _, table := range in {
				_, counts, err := nft.ReadElements(&nftables.Set{Table: nft.InetTable(table), Name: droppedPrefix + string(reason)})
				if errors.Is(err, unix.ENOENT) {
					continue // nothing can be dropped for it now
				} else if err != nil {
					return err
				}
				for e, packets := range counts {
					dropped[datapath.Dropped{Reason: reason, Interface: strings.TrimRight(e.Key, "\x00")}] += packets
				}
			}
		}
		return nil
	})
	return dropped, err
}
