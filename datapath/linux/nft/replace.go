package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Replace writes a table whole, and in the same moment deletes those of some names and
// edits others; there says whether the table is there already. One that is there is replaced in one
// transaction. One that is new is written in two: for a moment after a transaction,
// kernels find in some of its sets only what was there before, so packets are sent through
// the table when its sets are complete.
func Replace(t *Table, there bool, gone []string, also ...Edit) error {
	conn, err := Open()
	if err != nil {
		return err
	}
	deleteTable(conn, t.Name)
	if !t.Empty() {
		hooked, rest := NewTable(t.Name), NewTable(t.Name)
		if rest.Sets = t.Sets; there {
			hooked.Sets, rest.Sets = t.Sets, nil
		}
		for name, c := range t.Chains {
			if c.Hook != nil || there {
				hooked.Chains[name] = c
			} else {
				rest.Chains[name] = c
			}
		}
		if !there {
			if err := addTable(conn, rest); err != nil {
				return err
			}
			if err := conn.Flush(); err != nil {
				return fmt.Errorf("write nftables table inet %s: %w", t.Name, err)
			}
		}
		if err := addTable(conn, hooked); err != nil {
			return err
		}
	}
	for _, name := range gone {
		deleteTable(conn, name)
	}
	if _, err := write(conn, also); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table inet %s: %w", t.Name, err)
	}
	return nil
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
