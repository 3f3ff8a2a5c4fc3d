package main

import (
	"strings"
	"testing"
	"time"
)

func TestParseProcessorTime(t *testing.T) {
	got, err := parseProcessorTime("cpu  100 20 300 40000 500 6 70 8 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
	if err != nil {
		t.Fatal(err)
	}
	// user, nice, system, irq and softirq; not idle, iowait or steal.
	if want := (100 + 20 + 300 + 6 + 70) * 10 * time.Millisecond; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, bad := range []string{"", "intr 1 2 3", "cpu 1 2 3", "cpu 1 2 3 4 5 6 x 8"} {
		if _, err := parseProcessorTime(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestParseSmaps(t *testing.T) {
	const smaps = `00400000-7ffe [rollup]
Rss:               30720 kB
Pss:               20480 kB
Pss_Anon:          10240 kB
Anonymous:         10240 kB
`
	got, err := parseSmaps([]byte(smaps))
	if err != nil {
		t.Fatal(err)
	}
	if want := (memory{Resident: 30 << 20, Proportional: 20 << 20, Anonymous: 10 << 20}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := parseSmaps([]byte(strings.Replace(smaps, "Pss:", "Size:", 1))); err == nil {
		t.Error("a rollup without Pss was read")
	}
	if _, err := parseSmaps([]byte(strings.Replace(smaps, "30720", "many", 1))); err == nil {
		t.Error("a rollup with a word for a number was read")
	}
}

func TestKernelVersion(t *testing.T) {
	for release, want := range map[string]string{
		"6.1.0-18-amd64":  "6.1.0",
		"6.18.44-vendor7": "6.18.44",
		"7.0":             "7.0",
		"6.2-rc1.custom":  "6.2",
	} {
		if got := kernelVersion(release); got != want {
			t.Errorf("kernelVersion(%q) = %q, want %q", release, got, want)
		}
	}
}

func TestSettings(t *testing.T) {
	s, err := parseSettings([]string{"-only", "up,memory", "-up", "3,100"})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.only) != 2 || len(s.ups) != 2 || s.ups[1] != 100 {
		t.Errorf("got %+v", s)
	}
	for _, bad := range [][]string{{"more"}, {"-only", "speed"}, {"-up", "0"}, {"-up", "3,x"}, {"-rounds", "0"}, {"-sample", "0s"}} {
		if _, err := parseSettings(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
