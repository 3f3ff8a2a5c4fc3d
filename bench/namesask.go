package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const (
	// clientsEach is how many clients ask from each address.
	clientsEach = 4
	// unanswered is how long an answer may take. Then it counts as lost, and a client asks
	// for the next name.
	unanswered = time.Second
	// mostLate is how late a query is sent at most that is to be sent at a certain time.
	mostLate = 5 * time.Millisecond
)

// asking is what a worker asks a name server.
type asking struct {
	// Names are asked for one after the other, each for its IPv4 address. They end in a dot.
	Names []string
	// Rcode is the right one in an answer. With 0, NOERROR, there must be an answer as well.
	Rcode int
	// From are the addresses from which clients ask, several from each.
	From []netip.Addr
	// Rate is how many queries a second are sent, whether or not others are answered; 0 has
	// each client ask again as soon as it has its answer.
	Rate int
}

// asker is all clients, in one thread: they are not what is measured.
type asker struct {
	asking
	queries [][]byte
	next    int
	id      uint16
	polled  []unix.PollFd
	// waits is when each client sent the query that it waits for.
	waits []time.Time
	// sent is when the query of each ID was sent, since start; 0 for none that is not answered.
	sent  [1 << 16]time.Duration
	start time.Time
	buf   [dns.DefaultMsgSize]byte
}

func newAsker(to netip.Addr, q asking) (*asker, error) {
	a := &asker{asking: q, start: time.Now()}
	for _, name := range q.Names {
		b, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		if err != nil {
			return nil, fmt.Errorf("make a query for %s: %w", name, err)
		}
		a.queries = append(a.queries, b)
	}
	if len(a.queries) == 0 || len(q.From) == 0 {
		return nil, errors.New("there is nothing to ask, or nobody who does")
	}
	for i := range clientsEach * len(q.From) {
		fd, err := dialUDP(q.From[i%len(q.From)], to, stuck)
		if err != nil {
			a.close()
			return nil, err
		}
		a.polled = append(a.polled, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		if err := unix.SetNonblock(fd, true); err != nil {
			a.close()
			return nil, fmt.Errorf("make a socket non-blocking: %w", err)
		}
	}
	a.waits = make([]time.Time, len(a.polled))
	return a, nil
}

func (a *asker) close() {
	for _, p := range a.polled {
		unix.Close(int(p.Fd))
	}
}

// send has a client ask for the next name.
func (a *asker) send(client int) error {
	q := a.queries[a.next%len(a.queries)]
	a.next++
	a.id++
	binary.BigEndian.PutUint16(q, a.id)
	a.waits[client] = time.Now()
	a.sent[a.id] = a.waits[client].Sub(a.start)
	if _, err := write(int(a.polled[client].Fd), q); err != nil {
		return fmt.Errorf("send a query: %w", err)
	}
	return nil
}

// receive takes the answers that are there, and calls got for each with its client and how long
// it took since which time. Those that come too late are none.
func (a *asker) receive(timeout time.Duration, got func(client int, sent, took time.Duration) error) error {
	limit := unix.NsecToTimespec(int64(max(timeout, 0)))
	n, err := unix.Ppoll(a.polled, &limit, nil)
	if err == unix.EINTR || n == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for answers: %w", err)
	}
	for client, p := range a.polled {
		for p.Revents != 0 {
			n, err := read(int(p.Fd), a.buf[:])
			if err == unix.EAGAIN {
				break
			}
			if err != nil {
				return fmt.Errorf("receive an answer: %w", err)
			}
			id, err := checkAnswer(a.buf[:n], a.Rcode)
			if err != nil {
				return err
			}
			sent := a.sent[id]
			if sent == 0 {
				continue
			}
			a.sent[id] = 0
			if err := got(client, sent, time.Since(a.start)-sent); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkAnswer returns the ID of an answer, and an error if it is not as it should be.
func checkAnswer(b []byte, rcode int) (id uint16, err error) {
	const header, answered, truncated = 12, 0x80, 0x02 // RFC 1035, section 4.1.1
	if len(b) < header || b[2]&answered == 0 {
		return 0, fmt.Errorf("%d bytes came that are no answer", len(b))
	}
	if got := int(b[3] & 0xf); got != rcode || b[2]&truncated != 0 {
		return 0, fmt.Errorf("an answer says %s, not %s, or is truncated", dns.RcodeToString[got], dns.RcodeToString[rcode])
	}
	if rcode == dns.RcodeSuccess && binary.BigEndian.Uint16(b[6:]) == 0 {
		return 0, errors.New("an answer has no address")
	}
	return binary.BigEndian.Uint16(b), nil
}

// ask asks for a time, as asking says.
func ask(to netip.Addr, q asking, d time.Duration) (sample, error) {
	a, err := newAsker(to, q)
	if err != nil {
		return sample{}, err
	}
	defer a.close()
	if q.Rate > 0 {
		return a.atRate(d)
	}
	for client := range a.polled {
		if err := a.send(client); err != nil {
			return sample{}, err
		}
	}
	return measure(d, func(s *sample) error {
		err := a.receive(unanswered/10, func(client int, _, _ time.Duration) error {
			s.Count++
			return a.send(client)
		})
		if err != nil {
			return err
		}
		for client, since := range a.waits {
			if time.Since(since) < unanswered {
				continue
			}
			s.Lost++
			if err := a.send(client); err != nil {
				return err
			}
		}
		return nil
	})
}

// atRate sends at random times, as many clients do who know nothing of each other, and takes
// the times of the answers.
func (a *asker) atRate(d time.Duration) (sample, error) {
	// The kernel wakes a thread 50 µs late, unless it is told to be exact.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return sample{}, fmt.Errorf("have timers be exact: %w", err)
	}
	count := max(1, int(float64(a.Rate)*d.Seconds()))
	first := int(float64(a.Rate) * settle.Seconds())
	times := make([]time.Duration, 0, count)
	pause := func() time.Duration {
		return time.Duration(rand.ExpFloat64() * float64(time.Second) / float64(a.Rate))
	}
	before, err := processorTime()
	if err != nil {
		return sample{}, err
	}
	// counts is when the first query was sent that counts, ended when the last was.
	var counts, ended, due time.Duration
	for sent, waiting := 0, 0; ; {
		now := time.Since(a.start)
		// What this thread could not send, as others had its processor, is not made up for: nobody
		// asks that much at once.
		due = max(due, now-mostLate)
		for ; due <= now && sent < first+count; due += pause() {
			if err := a.send(sent % len(a.polled)); err != nil {
				return sample{}, err
			}
			if sent == first {
				counts = a.sent[a.id]
			}
			sent++
			waiting++
			ended = a.sent[a.id]
		}
		until := due
		if sent == first+count {
			if waiting == 0 || now >= ended+unanswered {
				break
			}
			until = ended + unanswered
		}
		err := a.receive(until-time.Since(a.start), func(_ int, sent, took time.Duration) error {
			waiting--
			if counts > 0 && sent >= counts {
				times = append(times, took)
			}
			return nil
		})
		if err != nil {
			return sample{}, err
		}
	}
	after, err := processorTime()
	if len(times) == 0 {
		err = errors.Join(err, fmt.Errorf("none of %d queries was answered", count))
	}
	slices.Sort(times)
	return sample{Count: uint64(len(times)), Lost: uint64(count - len(times)), Took: ended - counts, CPU: after - before,
		Median: quantile(times, 0.5), P99: quantile(times, 0.99)}, err
}

// dialUDP returns a socket that asks a name server from an address, or from any if that is not
// valid. Reading from it fails after patience.
func dialUDP(from, to netip.Addr, patience time.Duration) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	timeout := unix.NsecToTimeval(int64(patience))
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
	if err == nil && from.IsValid() {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()})
	}
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: namesPort, Addr: to.As4()})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("ask %s from %s: %w", to, from, err)
	}
	return fd, nil
}
