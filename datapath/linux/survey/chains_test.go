package survey

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/internal/netns"
)

// TestWhatAProgramDecides has a rule that gives packets to a program, before one
// that drops all.
func TestWhatAProgramDecides(t *testing.T) {
	rules := chains{"in": {{&expr.Queue{}}, {&expr.Verdict{Kind: expr.VerdictDrop}}}}
	p := newPacket(false, unix.IPPROTO_UDP, unix.RTN_UNICAST, unix.RTN_LOCAL)
	if end, err := p.through(rules, "in"); err != nil || end != isUnknown {
		t.Errorf("the packet's fate is %d, %v; expected that it is not known", end, err)
	}
	rules["in"] = rules["in"][1:]
	if end, err := p.through(rules, "in"); err != nil || end != isDropped {
		t.Errorf("without that rule, its fate is %d, %v; expected that it is dropped", end, err)
	}
}

// chains is a table of a packet filter without sets.
type chains map[string][][]expr.Any

func (c chains) rules(chain string) ([][]expr.Any, bool, error) { return c[chain], true, nil }

func (c chains) find(string) (finder, bool) { return nil, false }

// TestChainsChangeWhileListed has somebody change nftables while the chains are
// listed, once for each time: that is listed anew, and nothing else is an error.
func TestChainsChangeWhileListed(t *testing.T) {
	path := namespace(t)
	change, changed := make(chan bool), make(chan error, 1)
	// One buffer must not hold the chains, or there is nothing to interrupt.
	const chains = 2000
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	do(t, path, func() error {
		many := conn.AddTable(&nftables.Table{Name: "many", Family: nftables.TableFamilyINet})
		for i := range chains {
			conn.AddChain(&nftables.Chain{Name: fmt.Sprint("chain", i), Table: many})
		}
		return conn.Flush()
	})
	go func() {
		changed <- netns.Do(path, func() (err error) {
			for there := range change {
				other := &nftables.Table{Name: "other", Family: nftables.TableFamilyINet}
				if there {
					conn.AddTable(other)
				} else {
					conn.DelTable(other)
				}
				err = errors.Join(err, conn.Flush())
			}
			return err
		})
	}()
	do(t, path, func() error {
		defer close(change)
		interrupted := 0
		for round := 0; interrupted < 20; round++ {
			if round == 10000 {
				return fmt.Errorf("only %d of %d lists were interrupted", interrupted, round)
			}
			change <- true
			_, err := listChains()
			if errors.Is(err, netlink.ErrDumpInterrupted) {
				interrupted++
			} else if err != nil {
				return err
			}
			change <- false
			if all, err := chainDevices(); err != nil || len(all) != chains {
				return fmt.Errorf("%d chains, %v; expected %d", len(all), err, chains)
			}
		}
		return nil
	})
	if err := <-changed; err != nil {
		t.Error(err)
	}
}
