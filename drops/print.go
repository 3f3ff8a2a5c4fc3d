package drops

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/printable"
)

// unknown is what people read where there is neither a Rule nor a Reason.
const unknown = "(not known, the policies have changed since)"

// Print writes a report for people: a table of the rules and reasons with their
// counts, one of the packets that are chosen, and what is missing. Times are in zone. Of
// what every pod sends in the ordinary course, discovery, there are the counts alone:
// packets of it would hide the rest.
func (r Report) Print(w io.Writer, zone *time.Location, c Choice) error {
	if err := r.printTables(w, zone, c); err != nil || len(r.Missing) == 0 {
		return err
	}
	fmt.Fprintln(w, "\nThis is not all:")
	for _, m := range r.Missing {
		if _, err := printable.Fprintf(w, "  %s\n", printable.Brief(m.Error())); err != nil {
			return err
		}
	}
	return nil
}

func (r Report) printTables(w io.Writer, zone *time.Location, choice Choice) error {
	if len(r.Counts) == 0 && len(r.Recent) == 0 {
		text := "No packet was dropped."
		if len(r.Missing) > 0 {
			text = "No dropped packet is known."
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "PACKETS\tDIRECTION\tREASON")
	for _, c := range r.Counts {
		printable.Fprintf(t, "%d\t%s\t%s\n", c.Packets, c.Direction, why(c.Rule, c.Reason, c.From, netip.Addr{}))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	telling := slices.DeleteFunc(slices.Clone(r.Recent), func(r Record) bool { return r.Reason == datapath.Discovery })
	shown := choice.Of(telling)
	if len(shown) > 0 {
		fmt.Fprintln(w)
		t = tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
		printRow(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", titles)
		for _, record := range shown {
			printRow(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", record.cells(zone))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if left := len(telling) - len(shown); left > 0 {
		fmt.Fprintf(w, "\nEarlier packets that are not shown: %d (--tail -1 shows all, --since 10m those of ten minutes).\n", left)
	}
	if left := len(r.Recent) - len(telling); left > 0 {
		_, err := fmt.Fprintf(w, "\nPackets of %s are shown one by one with -f and -o json alone: %d.\n", datapath.Discovery, left)
		return err
	}
	return nil
}

// aligned are the columns of lines that are written as they come, for names
// that are not very long.
const aligned = "%-19s  %-8s  %-9s  %-28s  %-28s  %-8s  %-5s  %s\n"

// PrintTitles writes the titles above what Record.Print writes.
func PrintTitles(w io.Writer) error { return printRow(w, aligned, titles) }

// Print writes a line for people. Its time is in zone.
func (r Record) Print(w io.Writer, zone *time.Location) error {
	return printRow(w, aligned, r.cells(zone))
}

var titles = [...]string{"TIME", "NODE", "DIRECTION", "SOURCE", "DESTINATION", "PROTOCOL", "PORT", "REASON"}

func (r Record) cells(zone *time.Location) [len(titles)]string {
	port := "-"
	if r.Destination.Port != 0 {
		port = fmt.Sprint(r.Destination.Port)
	}
	return [...]string{r.Time.In(zone).Format("2006-01-02T15:04:05"), cmp.Or(r.Node, "-"), string(r.Direction),
		r.name(r.Source), r.name(r.Destination), r.Protocol, port, why(r.Rule, r.Reason, r.From, r.Peer)}
}

// why says in words what a packet was dropped for, and who sent it.
func why(rule string, reason datapath.Reason, from string, peer netip.Addr) string {
	if reason == "" {
		return cmp.Or(rule, unknown)
	}
	text := string(reason) + ": " + reason.Text()
	switch {
	case peer.IsValid():
		text += fmt.Sprintf(" (%s sent it)", peer)
	case from != "":
		text += fmt.Sprintf(" (from %s)", from)
	}
	return text
}

// name names an end. Whose address it is may be another's in another network.
func (r Record) name(e End) string {
	if e.Pod == "" && e.Address == (netip.Addr{}) {
		return "-"
	}
	return cmp.Or(e.Pod, r.In(e.Address).String())
}

func printRow(w io.Writer, format string, cells [len(titles)]string) error {
	var values [len(titles)]any
	for i, c := range cells {
		values[i] = c
	}
	_, err := printable.Fprintf(w, format, values[:]...)
	return err
}
