package service

import "github.com/weftnet/weft/registry"

// SetBudget has the Services of a namespace make no more than so much, until what it returns is called.
func SetBudget(frontends, backends int) (reset func()) {
	was := budget
	budget.frontends, budget.backends = frontends, backends
	return func() { budget = was }
}

// SetRanges has the Services of a namespace let in no more ranges of addresses than so many, until what it returns is called.
func SetRanges(ranges int) (reset func()) {
	was := budget.ranges
	budget.ranges = ranges
	return func() { budget.ranges = was }
}

// SetRooms has a call of Compile do no more of a namespace than so much, until what it returns is called.
func SetRooms(atOnce, ofTurn int) (reset func()) {
	was, wasOfTurn := roomAtOnce, roomOfTurn
	roomAtOnce, roomOfTurn = atOnce, ofTurn
	return func() { roomAtOnce, roomOfTurn = was, wasOfTurn }
}

// Owed returns how many Services are remembered to wait of a namespace, also those that do not any more.
func (c *Compiler) Owed(namespace string) int { return len(c.queue.owed[namespace].came.keys) }

// HintsOf returns by which zones and nodes the first endpoint of an EndpointSlice is to be used first, as it is kept.
func HintsOf(slice registry.Object) (zones, nodes []string) {
	first := readSlice(slice, nil).endpoints[0]
	return first.zones, first.nodes
}
