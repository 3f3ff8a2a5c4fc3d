package agent

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestChooseUnderlay walks testdata/underlay.txtar. In a story's "links" each
// line is an interface: name, MTU, addresses, and "default METRIC" for each
// family with a default route ("default6" for IPv6); "wanted" lists addresses
// given by flag.
func TestChooseUnderlay(t *testing.T) {
	archive, err := txtar.ParseFile(filepath.Join("testdata", "underlay.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var links []link
	var wanted []netip.Addr
	for _, f := range archive.Files {
		story, part := filepath.Split(f.Name)
		switch part {
		case "links":
			links, wanted = parseLinks(t, string(f.Data)), nil
		case "wanted":
			for _, w := range strings.Fields(string(f.Data)) {
				wanted = append(wanted, netip.MustParseAddr(w))
			}
		case "result":
			t.Run(strings.Trim(story, "/"), func(t *testing.T) {
				u, err := chooseUnderlay(links, wanted)
				got := fmt.Sprintf("addresses %v mtu %d prefixes %v\n", u.Addresses, u.MTU, u.Prefixes)
				if err != nil {
					got = "error: " + err.Error() + "\n"
				}
				if got != string(f.Data) {
					t.Errorf("got\n%swant\n%s", got, f.Data)
				}
			})
		default:
			t.Fatalf("unknown part %q", f.Name)
		}
	}
}

func parseLinks(t *testing.T, text string) []link {
	t.Helper()
	var links []link
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		l := link{Name: words[0], Metrics: [2]int{-1, -1}}
		l.MTU, _ = strconv.Atoi(words[1])
		for i := 2; i < len(words); i++ {
			switch words[i] {
			case "default", "default6":
				family := len(words[i]) - len("default")
				i++
				l.Metrics[family], _ = strconv.Atoi(words[i])
			default:
				l.Addresses = append(l.Addresses, netip.MustParsePrefix(words[i]))
			}
		}
		links = append(links, l)
	}
	return links
}
