package linux

// SetMaxEnded sets maxEnded, and returns how to set it back.
func SetMaxEnded(n uint32) (back func()) {
	was := maxEnded
	maxEnded = n
	return func() { maxEnded = was }
}

// SetMaxClients sets how many clients are remembered, until back is called.
func SetMaxClients(n uint32) (back func()) {
	was := maxClients
	maxClients = n
	return func() { maxClients = was }
}

// SetMostCounts sets how much Services count, until back is called.
func SetMostCounts(n uint32) (back func()) {
	was := mostCounts
	mostCounts = n
	return func() { mostCounts = was }
}

// WithoutLabels makes a data plane take the kernel for one that labels no connections.
func WithoutLabels(d *DataPlane) { d.policies.tags = false }
