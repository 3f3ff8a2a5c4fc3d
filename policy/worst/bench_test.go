package worst

import (
	"testing"

	"github.com/weftnet/weft/policy"
)

// BenchmarkIssue compiles the policy that first was too large, on a node with
// other tenants, and takes it back.
func BenchmarkIssue(b *testing.B) {
	with := Scene(Issue(43 << 10))
	without := *with
	without.Policies = with.Policies[:Others]
	var c policy.Compiler
	c.Compile(&without)
	b.Run("made", func(b *testing.B) {
		for b.Loop() {
			c.Compile(with)
			b.StopTimer()
			c.Compile(&without)
			b.StartTimer()
		}
	})
}
