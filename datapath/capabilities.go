package datapath

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/weftnet/weft/plan"
)

// String returns the capabilities as ParseCapabilities reads them.
func (c Capabilities) String() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // there is nothing in it that JSON has no form for
	}
	return string(b)
}

// ParseCapabilities reads what String wrote, also that of another version: what
// it does not name cannot be done.
func ParseCapabilities(text string) (Capabilities, error) {
	var c Capabilities
	if text == "" {
		return c, errors.New("nobody has said what the data plane can do")
	}
	err := json.Unmarshal([]byte(text), &c)
	return c, err
}

// does reports whether what an egress rule says can be done. All data planes leave packets
// as they are, and drop them: what else cannot be done is dropped.
func (c Capabilities) does(a plan.EgressAction) bool {
	return a == plan.Direct || a == plan.Discard || slices.Contains(c.EgressActions, a)
}

// endsHere reports whether a way leads to no peer, and not to nowhere either.
func endsHere(w plan.Way) bool {
	return w == plan.ToEndpoint || w == plan.ToHost || w == plan.ToGateway
}
