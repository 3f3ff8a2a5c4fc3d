package agent

import "time"

// pace keeps rounds from taking the node's processor from its pods while a
// large cluster starts, and every node's every change reaches every agent. A
// lone change does not wait, nor do some in a row; where they keep coming,
// rounds take one part in paceShare of the time.
type pace struct {
	// spent is what rounds took, less what time has forgiven until at.
	spent time.Duration
	at    time.Time
}

const (
	// paceBurst is how long rounds may take in a row before one waits.
	paceBurst = time.Second
	paceShare = 4
	// longestBreath bounds the wait for a round.
	longestBreath = time.Second
)

// took takes note that a round that ended now took a time.
func (p *pace) took(d time.Duration, now time.Time) {
	// What is more would only make the wait longer than the longest.
	p.spent = min(p.left(now)+d, paceBurst+longestBreath/paceShare)
	p.at = now
}

// breath is how long to let changes gather before the next round.
func (p *pace) breath(now time.Time) time.Duration {
	return max(0, (p.left(now)-paceBurst)*paceShare)
}

func (p *pace) left(now time.Time) time.Duration {
	return max(0, p.spent-now.Sub(p.at)/paceShare)
}
