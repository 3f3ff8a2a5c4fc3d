package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// Run states of daemons and pods.
const (
	Running = "running"
	Dead    = "dead"
	// Hangs: the agent's process is there, and does not answer.
	Hangs = "hangs"
	// Off: the node's power was cut.
	Off = "off"
	// Succeeded and Failed: the pod's process has ended, with exit code 0 or not.
	Succeeded = "succeeded"
	Failed    = "failed"
)

// Status is what runs of a lab.
type Status struct {
	Dir     string         `json:"dir"`
	Options Options        `json:"options"`
	Daemons []DaemonStatus `json:"daemons"`
	Pods    []PodStatus    `json:"pods"`
}

// DaemonStatus is an agent ("node1"), a node's name server ("node1-dns"), a controller
// ("controller1"), the servers outside the cluster ("switch", "switch-dns") or what sees to
// pods that end ("kubelet").
type DaemonStatus struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
	State     string       `json:"state"`
	// PID is the process number; 0 if it does not run.
	PID int `json:"pid,omitempty"`
	// Log is the file with its output.
	Log string `json:"log"`
	// Remedy is the command that starts what does not run, or says what to do about what hangs.
	Remedy string `json:"remedy,omitempty"`
}

// PodStatus is a pod.
type PodStatus struct {
	Pod
	Addresses []netip.Addr `json:"addresses"`
	State     string       `json:"state"`
	PID       int          `json:"pid,omitempty"`
	Log       string       `json:"log"`
}

// Healthy reports whether all daemons run, and answer.
func (s Status) Healthy() bool {
	for _, d := range s.Daemons {
		if d.State == Dead || d.State == Hangs {
			return false
		}
	}
	return true
}

// Status says what runs. Whether that answers, AskAgents says.
func (l *Lab) Status() (Status, error) {
	s := Status{Dir: string(l.dir), Options: l.options}
	add := func(name string, addresses []netip.Addr, remedy string) {
		d := DaemonStatus{Name: name, Addresses: addresses, State: Running, PID: l.PID(name), Log: l.dir.log(name)}
		if d.PID == 0 {
			d.State, d.Remedy = Dead, remedy
			if _, err := os.Stat(l.dir.record(name)); err != nil {
				d.State = Off
			}
		}
		s.Daemons = append(s.Daemons, d)
	}
	add(switchName, l.options.outside(), "weft lab start-node "+switchName)
	if l.options.DNS {
		add(OutsideNames, l.options.outside(), "weft lab start-node "+OutsideNames)
	}
	add(kubeletName, nil, "weft lab start-node "+kubeletName)
	if l.options.EtcdApart {
		add(Etcd, controllerMachine(1).addresses(l.options.IPv6)[:1], "weft lab start-node "+Etcd)
	}
	for i := range l.options.Controllers {
		m := controllerMachine(i + 1)
		add(m.name, m.addresses(l.options.IPv6), "weft lab start-node "+m.name)
	}
	for i := range l.options.Nodes {
		m := nodeMachine(i + 1)
		add(m.name, m.addresses(l.options.IPv6), "weft lab start-node "+m.name)
		if name := NameServer(m.name); l.options.DNS {
			add(name, nil, "weft lab start-node "+name)
		}
	}
	records, err := l.podRecords()
	if err != nil {
		return Status{}, fmt.Errorf("read the lab's pods: %w", err)
	}
	for _, r := range records {
		p := PodStatus{Pod: r.Pod, Addresses: r.Addresses, State: Running, Log: l.podLog(r.Pod)}
		if proc := readProcess(l.processFile(r.Pod)); proc.Alive() {
			p.PID = proc.PID
		} else {
			p.State = Dead
			if r.Phase != "" {
				p.State = strings.ToLower(string(r.Phase))
			}
		}
		s.Pods = append(s.Pods, p)
	}
	return s, nil
}

// AskAgents adds which agents hang, by asking all of them.
func (l *Lab) AskAgents(ctx context.Context, s *Status) {
	var run []string
	for _, d := range s.Daemons {
		if _, err := l.node(d.Name); err == nil && d.State == Running {
			run = append(run, d.Name)
		}
	}
	hung := l.Hung(ctx, run...)
	for i := range s.Daemons {
		d := &s.Daemons[i]
		if pid, hangs := hung[d.Name]; hangs {
			d.State, d.Remedy = Hangs, RemedyOfHung(pid, d.Name)
		}
	}
}

// Logs is the directory with the daemons' logs.
func (l *Lab) Logs() string { return l.dir.daemons() }
