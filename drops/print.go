package drops

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"text/tabwriter"
	"time"
)

// unknown is what people read where a Rule is empty.
const unknown = "(not known, the policies have changed since)"

// Print writes a report for people: a table of the rules with their counts,
// and one of the last packets. Times are in zone.
func (r Report) Print(w io.Writer, zone *time.Location) error {
	if len(r.Counts) == 0 && len(r.Recent) == 0 {
		_, err := fmt.Fprintln(w, "No policy has denied a packet.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "PACKETS\tDIRECTION\tRULE")
	for _, c := range r.Counts {
		fmt.Fprintf(t, "%d\t%s\t%s\n", c.Packets, c.Direction, cmp.Or(c.Rule, unknown))
	}
	if err := t.Flush(); err != nil || len(r.Recent) == 0 {
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	printRow(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", titles)
	for _, record := range r.Recent {
		printRow(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", record.cells(zone))
	}
	return t.Flush()
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

var titles = [...]string{"TIME", "NODE", "DIRECTION", "SOURCE", "DESTINATION", "PROTOCOL", "PORT", "RULE"}

func (r Record) cells(zone *time.Location) [len(titles)]string {
	port := "-"
	if r.Destination.Port != 0 {
		port = fmt.Sprint(r.Destination.Port)
	}
	return [...]string{r.Time.In(zone).Format("2006-01-02T15:04:05"), cmp.Or(r.Node, "-"), string(r.Direction),
		r.Source.name(), r.Destination.name(), r.Protocol, port, cmp.Or(r.Rule, unknown)}
}

func (e End) name() string {
	if e.Pod == "" && e.Address == (netip.Addr{}) {
		return "-"
	}
	return cmp.Or(e.Pod, e.Address.String())
}

func printRow(w io.Writer, format string, cells [len(titles)]string) error {
	var values [len(titles)]any
	for i, c := range cells {
		values[i] = c
	}
	_, err := fmt.Fprintf(w, format, values[:]...)
	return err
}
