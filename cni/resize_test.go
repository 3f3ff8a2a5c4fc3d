package cni

import (
	"context"
	"testing"
	"testing/synctest"
)

// unknown is a node between two networks: of its MTU nothing is known.
type unknown struct{ Node }

func (unknown) MTU() int { return 0 }

// TestMisfitStays has a node not know for a moment which MTU pods are to have: that some
// have another is said still.
func TestMisfitStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(Config{Node: unknown{}, Misfit: func(said string) { t.Errorf("it is said now: %q", said) }})
		s.misfits.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.resize(ctx)
		s.Resize()
		synctest.Wait()
		if !s.misfits.Load() {
			t.Error("it is forgotten")
		}
	})
}
