// Package drops is what is told of packets that policies denied: a Record for
// each that was seen, a Count for each rule. Agents serve them as JSON, a line
// each, and the command line shows them.
package drops
