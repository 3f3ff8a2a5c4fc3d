package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/test/kubernetes/programs"
)

const listed = `The following spec names can be used with 'ginkgo run --focus/skip':
    network/dns.go:54: [sig-network] DNS should provide DNS for the cluster [Conformance]
    network/netpol.go:1: [sig-network] Netpol should deny [Feature:NetworkPolicy]
    network/sctp.go:2: [sig-network] Networking sctp [Feature:SCTPConnectivity] [Conformance]
    storage/volume.go:2: [sig-storage] Volumes should mount [Conformance]
`

const (
	dns    = "[sig-network] DNS should provide DNS for the cluster [Conformance]"
	netpol = "[sig-network] Netpol should deny [Feature:NetworkPolicy]"
	sctp   = "[sig-network] Networking sctp [Feature:SCTPConnectivity] [Conformance]"
)

func TestASuiteIsChosen(t *testing.T) {
	specs := parseList(listed)
	rules, err := parseRules("# why\n\nNo SCTP here.\n\t[Feature:SCTP\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]suite{
		"conformance":   {Name: "conformance", Run: []string{dns}, LeftOut: map[string]string{sctp: "No SCTP here."}},
		"networkpolicy": {Name: "networkpolicy", Run: []string{netpol}, LeftOut: map[string]string{}},
		"all":           {Name: "all", Run: []string{dns, netpol}, LeftOut: map[string]string{sctp: "No SCTP here."}},
		"smoke":         {Name: "smoke", Run: []string{netpol}, LeftOut: map[string]string{}},
	} {
		got, err := choose(specs, name, parseSmoke("Netpol should deny [Feature:NetworkPolicy]"), rules)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	focus := regexp.MustCompile(suite{Run: []string{dns}}.focus())
	if !focus.MatchString("Kubernetes e2e suite "+dns) || focus.MatchString("Kubernetes e2e suite "+dns+" again") || focus.MatchString(sctp) {
		t.Errorf("the focus %s matches other names than it should", focus)
	}
}

func TestWhatFitsNothingIsAnError(t *testing.T) {
	specs := parseList(listed)
	if _, err := choose(specs, "all", nil, []rule{{Text: "gone", Reason: "R."}}); err == nil || !strings.Contains(err.Error(), `"gone"`) {
		t.Errorf("a rule for no spec: %v", err)
	}
	if _, err := choose(specs, "smoke", []string{"[sig-network] gone"}, nil); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("a smoke spec that there is not: %v", err)
	}
	if _, err := choose(specs, "some", nil, nil); err == nil {
		t.Error("a suite that there is not was chosen")
	}
	if _, err := parseRules("\ttext\n"); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a text without a reason: %v", err)
	}
}

func report(t *testing.T, specs ...specReport) []byte {
	t.Helper()
	b, err := json.Marshal([]ginkgoReport{{SpecReports: specs}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOutcomeIsHonest(t *testing.T) {
	s := suite{Run: []string{dns, netpol, sctp}, LeftOut: map[string]string{"other": "R."}}
	passed := specReport{LeafNodeText: dns, LeafNodeType: "It", State: "passed", RunTime: time.Second}
	refused := specReport{LeafNodeText: netpol, LeafNodeType: "It", State: "skipped"}
	refused.Failure.Message = "needs four nodes\nstack"
	o, err := judge(s, report(t, passed, refused))
	if err != nil {
		t.Fatal(err)
	}
	if o.OK() || o.Failed[sctp] != "did not run" || o.LeftOut[netpol] != "the spec itself: needs four nodes" || len(o.Passed) != 1 {
		t.Errorf("%+v", o)
	}
	if !strings.HasSuffix(o.String(), "1 passed, 1 failed, 2 left out\n") {
		t.Errorf("%s", o)
	}

	s.Run = []string{dns}
	if o, err = judge(s, report(t, passed)); err != nil || !o.OK() {
		t.Errorf("%+v, %v", o, err)
	}
	// A spec that was skipped without a word, as those out of focus are, and
	// nodes of the suite itself.
	if o, err = judge(s, report(t, specReport{LeafNodeText: dns, LeafNodeType: "It", State: "skipped"})); err != nil || o.OK() {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = judge(s, report(t, passed, specReport{LeafNodeType: "SynchronizedBeforeSuite", State: "failed"})); err != nil || o.OK() {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = judge(suite{}, report(t)); err != nil || o.OK() {
		t.Errorf("nothing ran, and that was right: %+v, %v", o, err)
	}
	if _, err = judge(s, []byte("[]")); err == nil {
		t.Error("an empty report was no error")
	}
}

// TestTheFilesFitTheSpecs holds left-out.txt and smoke.txt against the specs
// that there are.
func TestTheFilesFitTheSpecs(t *testing.T) {
	bin := programs.Need(t, "e2e.test")
	list, err := exec.Command(filepath.Join(bin, "e2e.test"), "--list-tests").Output()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := parseRules(leftOutText)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"smoke", "conformance", "networkpolicy", "all"} {
		s, err := choose(parseList(string(list)), name, parseSmoke(smokeText), rules)
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s: %d to run, %d left out", name, len(s.Run), len(s.LeftOut))
	}
}
