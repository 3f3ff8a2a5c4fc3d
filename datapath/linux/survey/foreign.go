package survey

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/datapath/linux/nft"
)

// chainKey names a chain of nftables.
type chainKey struct {
	family      nftables.TableFamily
	table, name string
}

// chainDevices returns the devices that chains of nftables are on, which the
// library does not read. A name that ends with an asterisk is the beginning of
// several.
func chainDevices() (map[chainKey][]string, error) {
	messages, err := message.Dump(listChains)
	if err != nil {
		return nil, fmt.Errorf("list the devices of nftables chains: %w", err)
	}
	const hookDevice, hookDevices, devicePrefix = 3, 4, 2 // NFTA_HOOK_DEV, NFTA_HOOK_DEVS, NFTA_DEVICE_PREFIX
	all := map[chainKey][]string{}
	text := func(b []byte) string { return strings.TrimRight(string(b), "\x00") }
	for _, m := range messages {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		key, devices := chainKey{family: nftables.TableFamily(m[0])}, []string(nil)
		for kind, v := range message.Attributes(m[nl.SizeofNfgenmsg:]) {
			switch kind {
			case unix.NFTA_CHAIN_TABLE:
				key.table = text(v)
			case unix.NFTA_CHAIN_NAME:
				key.name = text(v)
			case unix.NFTA_CHAIN_HOOK:
				for kind, v := range message.Attributes(v) {
					switch kind {
					case hookDevice:
						devices = append(devices, text(v))
					case hookDevices:
						for kind, v := range message.Attributes(v) {
							if name := text(v); kind == devicePrefix {
								devices = append(devices, name+"*")
							} else {
								devices = append(devices, name)
							}
						}
					}
				}
			}
		}
		all[key] = devices
	}
	return all, nil
}

// listChains asks for the chains of all families once.
func listChains() ([][]byte, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{Version: nl.NFNETLINK_V0})
	return request.Execute(unix.NETLINK_NETFILTER, 0)
}

// nftTable is an nftables table of somebody's.
type nftTable struct {
	conn  *nftables.Conn
	table *nftables.Table
	// known are the chains and sets that were read.
	known map[string][][]expr.Any
	sets  map[string]finder
}

// finder returns what a set says of all keys from one to another; perhaps where it
// does not say the same of all.
type finder func(low, high []byte) (nft.Verdict, certainty)

// rules returns the rules of a chain; false if there is no such chain, as it
// may just have been removed.
func (t *nftTable) rules(chain string) ([][]expr.Any, bool, error) {
	if all, ok := t.known[chain]; ok {
		return all, true, nil
	}
	rules, err := t.conn.GetRules(t.table, &nftables.Chain{Name: chain, Table: t.table})
	if errors.Is(err, unix.ENOENT) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("list the rules of chain %s of nftables table %s: %w", chain, t.table.Name, err)
	}
	var all [][]expr.Any
	for _, r := range rules {
		all = append(all, r.Exprs)
	}
	t.known[chain] = all
	return all, true, nil
}

// find returns what a set says of keys; false where that cannot be told.
func (t *nftTable) find(name string) (finder, bool) {
	f, known := t.sets[name]
	if !known {
		f = t.read(name)
		t.sets[name] = f
	}
	return f, f != nil
}

func (t *nftTable) read(name string) finder {
	s, err := t.conn.GetSetByName(t.table, name)
	if err != nil || s.Dynamic {
		return nil
	}
	all, _, err := nft.ReadElements(s)
	if err != nil {
		return nil
	}
	return finderOf(all, s.Interval)
}

// finderOf returns what finds keys among the elements of somebody's set. Those of
// an interval set are where an interval begins, and where one has ended.
func finderOf(all nft.Elements, interval bool) finder {
	sorted := all.Keys()
	miss, has := nft.Verdict{}, no
	if len(sorted) > 0 && sorted[0].Key == "" {
		miss, has = all[sorted[0]].Verdict, yes // what holds for all that is not there
		sorted = sorted[1:]
	}
	// after returns how many elements are not behind a key.
	after := func(key []byte) int {
		n, _ := slices.BinarySearchFunc(sorted, string(key), func(e nft.Element, key string) int {
			if e.Key <= key {
				return -1
			}
			return 1
		})
		return n
	}
	return func(low, high []byte) (nft.Verdict, certainty) {
		if len(sorted) > 0 && (len(sorted[0].Key) != len(low) || sorted[0].Last != "") {
			return nft.Verdict{}, perhaps // a part of the key alone is known
		}
		n := after(low)
		one := bytes.Equal(low, high)
		switch {
		case !one && after(high) != n:
			return nft.Verdict{}, perhaps
		case n == 0 || sorted[n-1].End:
		case interval, one && sorted[n-1].Key == string(low):
			return all[sorted[n-1]].Verdict, yes
		case sorted[n-1].Key == string(low):
			return nft.Verdict{}, perhaps
		}
		return miss, has
	}
}
