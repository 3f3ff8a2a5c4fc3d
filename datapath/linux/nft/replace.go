package nft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Placed is a table to be written whole, and whether it is there already.
type Placed struct {
	*Table
	There bool
	// Vouching are sets of the table that is there which lose their elements in the same moment.
	// A packet that is in that table's rules then finds nothing in its maps any more, and would
	// in its sets.
	Vouching []string
}

// Replace writes a table whole; see ReplaceAll.
func Replace(t *Table, there bool, gone []string, also ...Edit) error {
	return ReplaceAll([]Placed{{Table: t, There: there}}, gone, also...)
}

// ReplaceAll writes tables whole, and in the same moment deletes those of some names and
// edits others. What is there is replaced in one transaction. Where one is new, there are
// two: for a moment after a transaction,
// kernels find in some of its sets only what was there before, so packets are sent through
// the table when its sets are complete.
func ReplaceAll(tables []Placed, gone []string, also ...Edit) error {
	var names []string
	for _, t := range tables {
		names = append(names, t.Name)
	}
	conn, err := Open()
	if err != nil {
		return err
	}
	flush := func() error {
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("write nftables table inet %s: %w", strings.Join(names, " and "), err)
		}
		return nil
	}
	var last []*Table
	first := false
	for _, t := range tables {
		if t.There || t.Empty() {
			last = append(last, t.Table)
			continue
		}
		hooked, rest := NewTable(t.Name), NewTable(t.Name)
		rest.Sets, first = t.Sets, true
		for name, c := range t.Chains {
			if c.Hook != nil {
				hooked.Chains[name] = c
			} else {
				rest.Chains[name] = c
			}
		}
		deleteTable(conn, t.Name)
		if err := addTable(conn, rest); err != nil {
			return err
		}
		last = append(last, hooked)
	}
	if first {
		if err := flush(); err != nil {
			return err
		}
	}
	for i, t := range last {
		for _, set := range tables[i].Vouching {
			conn.FlushSet(&nftables.Set{Table: InetTable(t.Name), Name: set})
		}
		if tables[i].There || t.Empty() {
			deleteTable(conn, t.Name)
		}
		if !t.Empty() {
			if err := addTable(conn, t); err != nil {
				return err
			}
		}
	}
	for _, name := range gone {
		deleteTable(conn, name)
	}
	if _, err := write(conn, also); err != nil {
		return err
	}
	return flush()
}

// Delete deletes tables, whether they are there or not.
func Delete(names ...string) error {
	conn, err := Open()
	if err != nil {
		return err
	}
	for _, name := range names {
		deleteTable(conn, name)
	}
	return conn.Flush()
}

func deleteTable(conn *nftables.Conn, name string) {
	conn.AddTable(InetTable(name))
	conn.DelTable(InetTable(name))
}

// AnyOf reports whether there is a table of one of some names.
func AnyOf(names ...string) (bool, error) {
	conn, err := Open()
	if err != nil {
		return false, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", noTables(err))
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return slices.Contains(names, t.Name) }), nil
}

// Rewrite has each rule of the table become what f makes of its expressions.
func (t *Table) Rewrite(f func([]expr.Any) [][]expr.Any) {
	for _, c := range t.Chains {
		var rules []filterRule
		for _, rule := range c.Rules {
			for _, exprs := range f(rule.Exprs) {
				rules = append(rules, filterRule{rule.Comment, exprs})
			}
		}
		c.Rules = rules
	}
}

// Exists says whether the table was there.
func (c Content) Exists() bool { return c.exists }

// HasSet reports whether it has a set of a name.
func (c Content) HasSet(name string) bool {
	_, ok := c.sets[name]
	return ok
}
