package agent

import (
	"testing"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/service"
)

// TestHidden has pods with the ports at which the node is asked about Services, and with others.
func TestHidden(t *testing.T) {
	p, err := plan.Parse(`
node node1 addresses 172.30.0.11
service default 172.30.0.11 tcp 10256 to a # Pod shop/web
service default 172.30.0.11 tcp 30001 to a # Pod shop/web
service default 172.30.0.11 tcp 30002 to a # Pod shop/web
service default 172.30.0.11 udp 30003 to a # Pod shop/web
service default 172.30.0.11 tcp 30004 to a # Service shop/web
service default 172.30.0.11 tcp 10249 to a # Pod shop/web
service default 127.0.0.1 tcp 10249 from inside to a # Pod shop/web
backend default a 10.1.0.2:80@node1
`)
	if err != nil {
		t.Fatal(err)
	}
	checks := []service.Check{{Port: 30001}, {Port: 30003}, {Port: 30004}}
	want := "who asks the node about Services is answered by pods, which have these ports as hostPorts: " +
		"172.30.0.11:10256 (Pod shop/web), 172.30.0.11:30001 (Pod shop/web), 127.0.0.1:10249 (Pod shop/web); give them others"
	if got := hidden(p, checks); got != want {
		t.Errorf("it is said: %s", got)
	}
	if got := hidden(&plan.Plan{}, checks); got != "" {
		t.Errorf("of no ports it is said: %s", got)
	}
}
