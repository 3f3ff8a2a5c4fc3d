package datapath

import (
	"encoding/json"
	"errors"
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
