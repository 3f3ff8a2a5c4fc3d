// Package rules holds the tree to its own rules: every package says what it is
// for, and no package imports what the architecture says it must not know. It
// has tests only.
package rules
