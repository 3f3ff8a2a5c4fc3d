package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/lab"
)

const (
	// attempts and attemptTime are how often and for how long resolvers wait for an answer
	// (resolv.conf(5)).
	attempts    = 2
	attemptTime = 5 * time.Second
	// lookupEvery is how often each of those asks who look names up all the time.
	lookupEvery = 20 * time.Millisecond
)

// question is asked of a name server, over "udp" or "tcp".
type question struct {
	network, server, name string
	of                    uint16
}

// ask asks once, and over TCP as well where a datagram had no room for the answer.
func (q question) ask() (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(q.name), q.of).SetEdns0(dns.DefaultMsgSize, false)
	c := &dns.Client{Net: q.network, Timeout: attemptTime}
	answer, _, err := c.Exchange(m, net.JoinHostPort(q.server, "53"))
	if err == nil && answer.Truncated && q.network == "udp" {
		q.network = "tcp"
		return q.ask()
	}
	return answer, err
}

// said is what an answer says, in one line: NXDOMAIN and the like, or the records, in order.
func said(m *dns.Msg) string {
	if m.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[m.Rcode]
	}
	var all []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			all = append(all, rr.A.String())
		case *dns.AAAA:
			all = append(all, rr.AAAA.String())
		case *dns.CNAME:
			all = append(all, rr.Target)
		case *dns.PTR:
			all = append(all, rr.Ptr)
		case *dns.SRV:
			all = append(all, fmt.Sprintf("%s:%d", rr.Target, rr.Port))
		case *dns.TXT:
			all = append(all, strings.Join(rr.Txt, ""))
		}
	}
	slices.Sort(all)
	return cmp.Or(strings.Join(all, " "), "no data")
}

// parseQuestion reads one as NETWORK,SERVER,TYPE,NAME.
func parseQuestion(text string) question {
	parts := strings.SplitN(text, ",", 4)
	return question{network: parts[0], server: parts[1], of: dns.StringToType[parts[2]], name: parts[3]}
}

// noAnswer is what a question that nobody answers comes to.
const noAnswer = "no answer"

// namesAsked asks some questions all at once, see parseQuestion, and prints the answers, a line
// each.
func namesAsked(args []string) error {
	answers := make([]string, len(args))
	var asking sync.WaitGroup
	for i, arg := range args {
		asking.Go(func() {
			answers[i] = noAnswer
			if answer, err := parseQuestion(arg).ask(); err == nil {
				answers[i] = said(answer)
			}
		})
	}
	asking.Wait()
	fmt.Println(strings.Join(answers, "\n"))
	return nil
}

// resolve prints the addresses that this machine's resolver, which goes by resolv.conf, finds
// for some names, a line each.
func resolve(names []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, name := range names {
		addresses, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, name)
		if err != nil {
			fmt.Println("none:", err)
			continue
		}
		slices.Sort(addresses)
		fmt.Println(strings.Join(addresses, " "))
	}
	return nil
}

// lookups looks the same names up again and again, each a question with =ANSWER behind it,
// until its standard input ends. Of each look-up it prints a line: in how many attempts it came to
// its answer, or what it came to instead.
func lookups(args []string) error {
	lines := make(chan string)
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	var asking sync.WaitGroup
	for _, arg := range args {
		arg, want, _ := strings.Cut(arg, "=")
		q := parseQuestion(arg)
		asking.Go(func() {
			next := time.NewTicker(lookupEvery)
			defer next.Stop()
			for {
				select {
				case <-ended:
					return
				case <-next.C:
				}
				lines <- lookUp(q, want)
			}
		})
	}
	go func() {
		asking.Wait()
		close(lines)
	}()
	for line := range lines {
		fmt.Println(line)
	}
	return nil
}

func lookUp(q question, want string) string {
	var errs []error
	for i := range attempts {
		answer, err := q.ask()
		if err == nil {
			if got := said(answer); got != want {
				return fmt.Sprintf("%s %s: %s, and not %s", q.network, q.name, got, want)
			}
			return strconv.Itoa(i + 1)
		}
		errs = append(errs, err)
	}
	return strings.ReplaceAll(fmt.Sprintf("%s %s: %v", q.network, q.name, errors.Join(errs...)), "\n", "; ")
}

// looker looks names up in a pod, as lookups does.
type looker struct {
	c     *cluster
	where place
	stop  func() error

	mu sync.Mutex
	// found counts those that came to their answer, again those of them that took two attempts, and
	// lost says of the others what they came to.
	found, again int
	lost         []string
	ended        bool
}

// lookUpAll begins to look names up in a pod.
func (c *cluster) lookUpAll(where place, questions ...string) *looker {
	c.Helper()
	l := &looker{c: c, where: where}
	in, stop := io.Pipe()
	out, write := io.Pipe()
	var errs bytes.Buffer
	done := make(chan error, 1)
	go func() {
		err := c.execute(where, lab.Command{Args: append([]string{self, "lookups"}, questions...), Stdin: in, Stdout: write, Stderr: &errs})
		write.Close()
		done <- err
	}()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			l.mu.Lock()
			switch s.Text() {
			case "1":
				l.found++
			case "2":
				l.found++
				l.again++
			default:
				l.lost = append(l.lost, s.Text())
			}
			l.mu.Unlock()
		}
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
	}()
	l.stop = sync.OnceValue(func() error {
		stop.Close()
		err := <-done
		<-read
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", where, err, errs.String())
		}
		return err
	})
	c.Cleanup(func() { l.stop() })
	l.goesOn()
	return l
}

// enough is how many look-ups have to go on after what happens to a cluster: more than can be
// under way when it does.
const enough = 100

// goesOn waits until as many names as are enough have been found from now on.
func (l *looker) goesOn() {
	l.c.Helper()
	l.mu.Lock()
	until := l.found + enough
	l.mu.Unlock()
	l.c.eventually(func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ended || len(l.lost) > 0 {
			return nil // lossless says what
		}
		if l.found < until {
			return fmt.Errorf("%s has found %d names, and not %d", l.where, l.found, until)
		}
		return nil
	})
}

// lossless fails the test if a look-up came to nothing since it was called last, or ended, and says
// what happened to the cluster.
func (l *looker) lossless(what string) {
	l.c.Helper()
	l.goesOn()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.c.Logf("%s, from %s: %d names were found, %d of them in two attempts, %d lost", what, l.where, l.found, l.again, len(l.lost))
	if len(l.lost) > 0 || l.ended {
		l.c.Errorf("%s, from %s: of %d look-ups these were lost, ended: %t: %q", what, l.where, l.found+len(l.lost), l.ended, l.lost[:min(len(l.lost), 10)])
	}
	l.found, l.again, l.lost = 0, 0, nil
}
