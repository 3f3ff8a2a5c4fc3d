package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// lookups are names that a pod looks for as C's library does: in one domain after the other
// where a name has few dots, and for addresses of both families at once.
type lookups struct {
	// Search are the domains of the pod's resolv.conf, without the dot at their ends.
	Search []string
	// Names are looked for one after the other; without any, a name that nobody has looked for
	// before each time.
	Names []string
	// Fresh is what makes such names other than those of all other runs.
	Fresh string
	From  netip.Addr
}

// dots is how many dots a name has that pods look for as it is at first (ndots).
const dots = 5

// candidates are the names that are asked for one after the other until there is an address.
func candidates(name string, search []string) (all []string) {
	for _, domain := range search {
		all = append(all, name+"."+domain+".")
	}
	if strings.Count(name, ".") >= dots {
		return slices.Insert(all, 0, name+".")
	}
	return append(all, name+".")
}

// lookUpAll looks up names for a time.
func lookUpAll(to netip.Addr, l lookups, d time.Duration) (s sample, err error) {
	var times []time.Duration
	for start := time.Now(); s.Took < d; s.Took = time.Since(start) {
		name := fmt.Sprintf("%s-%d.%s", l.Fresh, s.Count, outsideDomain)
		if len(l.Names) > 0 {
			name = strings.TrimSuffix(l.Names[s.Count%uint64(len(l.Names))], ".")
		}
		began := time.Now()
		sent, err := lookUp(to, l.From, candidates(name, l.Search))
		if err != nil {
			return s, fmt.Errorf("look up %s: %w", name, err)
		}
		times = append(times, time.Since(began))
		s.Sent += uint64(sent)
		s.Count++
	}
	slices.Sort(times)
	s.Median, s.P99 = quantile(times, 0.5), quantile(times, 0.99)
	return s, nil
}

// lookUp returns how many queries it took until one was answered with an address.
func lookUp(to, from netip.Addr, names []string) (sent int, err error) {
	fd, err := dialUDP(from, to, stuck)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	for _, name := range names {
		found := false
		waiting := make(map[uint16]bool)
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			q := new(dns.Msg).SetQuestion(name, qtype)
			if err := sendMessage(fd, q); err != nil {
				return sent, err
			}
			waiting[q.Id] = true
			sent++
		}
		for len(waiting) > 0 {
			answer, err := receiveMessage(fd)
			if err != nil {
				return sent, err
			}
			if !waiting[answer.Id] {
				continue
			}
			delete(waiting, answer.Id)
			switch answer.Rcode {
			case dns.RcodeSuccess:
				found = found || len(addressesIn(answer)) > 0
			case dns.RcodeNameError:
			default:
				return sent, fmt.Errorf("the answer for %s is %s", name, dns.RcodeToString[answer.Rcode])
			}
		}
		if found {
			return sent, nil
		}
	}
	return sent, errors.New("no name in the list has an address")
}

// awaiting is an answer that is to come.
type awaiting struct {
	Name string
	// Address is what the name is to stand for. The zero Address means that there is to be no
	// such name.
	Address netip.Addr
}

// askAgain is how long after an answer that is not right the next query is sent.
const askAgain = 500 * time.Microsecond

// await asks until the answer is right, and says when that was. A server that does not answer
// yet is asked again.
func (w awaiting) await(to netip.Addr, limit time.Duration) (s sample, err error) {
	fd, err := dialUDP(netip.Addr{}, to, unanswered)
	if err != nil {
		return s, err
	}
	defer unix.Close(fd)
	for start := time.Now(); ; time.Sleep(askAgain) {
		is := "none"
		q := new(dns.Msg).SetQuestion(w.Name, dns.TypeA)
		err := sendMessage(fd, q)
		if err == nil {
			s.Sent++
			var answer *dns.Msg
			if answer, err = receiveMessage(fd); err == nil {
				if answer.Id == q.Id && w.right(answer) {
					s.At, err = monotonic()
					return s, err
				}
				is = fmt.Sprintf("%s with %v", dns.RcodeToString[answer.Rcode], addressesIn(answer))
			}
		}
		if time.Since(start) > limit {
			return s, errors.Join(fmt.Errorf("after %v there is not the right answer for %s, but %s", limit, w.Name, is), err)
		}
	}
}

func (w awaiting) right(answer *dns.Msg) bool {
	if !w.Address.IsValid() {
		return answer.Rcode == dns.RcodeNameError
	}
	addresses := addressesIn(answer)
	return answer.Rcode == dns.RcodeSuccess && len(addresses) == 1 && addresses[0] == w.Address
}

// addressesIn returns the addresses that an answer has.
func addressesIn(answer *dns.Msg) (all []netip.Addr) {
	for _, rr := range answer.Answer {
		var a netip.Addr
		switch rr := rr.(type) {
		case *dns.A:
			a, _ = netip.AddrFromSlice(rr.A)
		case *dns.AAAA:
			a, _ = netip.AddrFromSlice(rr.AAAA)
		}
		if a.IsValid() {
			all = append(all, a.Unmap())
		}
	}
	return all
}

func sendMessage(fd int, m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	if _, err := write(fd, b); err != nil {
		return fmt.Errorf("send a query: %w", err)
	}
	return nil
}

func receiveMessage(fd int) (*dns.Msg, error) {
	b := make([]byte, dns.DefaultMsgSize)
	n, err := read(fd, b)
	if err != nil {
		return nil, fmt.Errorf("receive an answer: %w", err)
	}
	m := new(dns.Msg)
	return m, m.Unpack(b[:n])
}

// monotonic is the time since some moment that is the same for all processes.
func monotonic() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("clock_gettime: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
