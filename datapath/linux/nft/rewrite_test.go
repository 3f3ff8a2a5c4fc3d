package nft

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// tableOf is a table with a chain that packets meet, which leads to another, a set, and one
// that holds what rules put into it.
func tableOf(priority int32, leadsTo, comment string, elements ...string) *Table {
	t := NewTable("weft-test")
	input := t.Chain("input")
	input.Hook = &Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookInput, Priority: nftables.ChainPriority(priority)}
	input.Add("those of the set", MetaEqual(expr.MetaKeyIIFNAME, []byte("lo")), Jump(leadsTo))
	t.Chain(leadsTo).Add(comment, Count(), Decide(Accept))
	set := t.Set("names", Set{Key: nftables.TypeIFName, Verdicts: true})
	for _, e := range elements {
		set.Elements[Element{Key: InterfaceKey(e)}] = Value{Verdict: GoTo(leadsTo)}
	}
	t.Set("clients", Set{Key: nftables.TypeIPAddr, Timeout: true, Dynamic: true})
	return t
}

// TestRewrite writes one table over another. Where the sets are the same, and what packets meet
// first, sets keep what rules have put into them, and else they do not; what is there is always
// what was asked for.
func TestRewrite(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		write := func(have Content, table *Table) (now Content, said string, err error) {
			now, lines, err := Write(have, table)
			if err != nil {
				return now, "", err
			}
			read, err := Read(table.Name)
			if next, _ := table.content(); err == nil && (!read.equal(next) || !now.equal(next)) {
				err = fmt.Errorf("it is there as %v, was told as %v, and was asked for as %v", read, now, next)
			}
			return now, strings.Join(lines, "\n"), err
		}
		first := tableOf(0, "one", "a rule", "a", "b")
		now, _, err := write(newContent(), first)
		if err != nil {
			return err
		}
		err = Transaction(first.Name, func(conn *nftables.Conn) error {
			return AddElements(conn, first.Sets["clients"].In(first.Name, "clients"), Elements{{Key: "\x0a\x01\x01\x02"}: {}}, time.Hour)
		})
		if err != nil {
			return err
		}
		for _, step := range []struct {
			what  string
			table *Table
			keeps int
		}{
			{"another rule", tableOf(0, "one", "another rule", "a", "b"), 1},
			{"other elements", tableOf(0, "one", "another rule", "b", "c"), 1},
			{"another chain, to which elements lead, in place of one", tableOf(0, "two", "another rule", "b", "c"), 1},
			{"none of the elements", tableOf(0, "two", "another rule"), 1},
			{"packets meet it elsewhere", tableOf(10, "two", "another rule", "a"), 0},
		} {
			before := now
			next, said, err := write(now, step.table)
			if err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
			now = next
			clients, _, err := ReadElements(step.table.Sets["clients"].In("weft-test", "clients"))
			if err != nil {
				return err
			}
			if n := len(clients); n != step.keeps {
				t.Errorf("%s: %d clients are known, and not %d", step.what, n, step.keeps)
			}
			if strings.Contains(said, "could not be changed") {
				t.Errorf("%s: %s", step.what, said)
			}
			if maps.Equal(before.chains, now.chains) != !strings.Contains(said, "write table") {
				t.Errorf("%s: it is said: %s", step.what, said)
			}
		}
		// Somebody took a chain away since the table was read, so that it cannot be changed.
		err = Transaction("weft-test", func(conn *nftables.Conn) error {
			conn.FlushTable(InetTable("weft-test"))
			conn.FlushSet(&nftables.Set{Table: InetTable("weft-test"), Name: "names"})
			conn.DelChain(&nftables.Chain{Table: InetTable("weft-test"), Name: "two"})
			return nil
		})
		if err != nil {
			return err
		}
		_, said, err := write(now, tableOf(10, "three", "another rule", "a"))
		if !strings.Contains(said, "whole, as it could not be changed: ") {
			t.Errorf("a table that is not what was read is written as: %s", said)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
