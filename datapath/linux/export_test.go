package linux

// SetMaxEnded sets maxEnded, and returns how to set it back.
func SetMaxEnded(n uint32) (back func()) {
	was := maxEnded
	maxEnded = n
	return func() { maxEnded = was }
}

// WithoutLabels makes a data plane take the kernel for one that labels no connections.
func WithoutLabels(d *DataPlane) { d.policies.tags = false }
