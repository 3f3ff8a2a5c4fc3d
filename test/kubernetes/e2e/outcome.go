package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ginkgoReport is what of ginkgo's JSON report is of use here.
type ginkgoReport struct {
	SpecReports []specReport
	// SpecialSuiteFailureReasons say why the suite as a whole failed.
	SpecialSuiteFailureReasons []string
}

type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	LeafNodeType            string
	State                   string
	RunTime                 time.Duration
	Failure                 struct{ Message string }
}

func (r specReport) name() string {
	return strings.TrimSpace(strings.Join(append(slices.Clone(r.ContainerHierarchyTexts), r.LeafNodeText), " "))
}

// outcome is what became of a suite.
type outcome struct {
	Passed []string
	// Failed holds what each spec that failed, or did not run, said.
	Failed map[string]string
	// LeftOut holds reasons: those of left-out.txt, and those that specs found
	// themselves, for not running on such a cluster.
	LeftOut map[string]string
	Slowest []specReport
}

// judge finds what became of a suite in ginkgo's report. A spec that ginkgo
// does not report failed.
func judge(s suite, report []byte) (outcome, error) {
	o := outcome{Failed: make(map[string]string), LeftOut: maps.Clone(s.LeftOut)}
	var reports []ginkgoReport
	if err := json.Unmarshal(report, &reports); err != nil {
		return o, fmt.Errorf("ginkgo's report: %w", err)
	}
	if len(reports) == 0 {
		return o, errors.New("ginkgo's report is empty")
	}
	found := make(map[string]specReport)
	for _, r := range reports {
		for _, spec := range r.SpecReports {
			if spec.LeafNodeType == "It" {
				found[spec.name()] = spec
			} else if spec.State == "failed" || spec.State == "panicked" {
				o.Failed[spec.LeafNodeType] = spec.Failure.Message
			}
		}
		for _, why := range r.SpecialSuiteFailureReasons {
			o.Failed["the suite"] = why
		}
	}
	for _, name := range s.Run {
		spec, ran := found[name]
		switch {
		case ran && spec.State == "passed":
			o.Passed = append(o.Passed, name)
			o.Slowest = append(o.Slowest, spec)
		case ran && spec.State == "skipped" && spec.Failure.Message != "":
			o.LeftOut[name] = "the spec itself: " + firstLine(spec.Failure.Message)
		case ran:
			o.Failed[name] = spec.State + ": " + firstLine(spec.Failure.Message)
		default:
			o.Failed[name] = "did not run"
		}
	}
	// That some specs failed is said of each.
	if len(o.Failed) > 1 {
		delete(o.Failed, "the suite")
	}
	slices.SortFunc(o.Slowest, func(a, b specReport) int { return int(b.RunTime - a.RunTime) })
	o.Slowest = o.Slowest[:min(3, len(o.Slowest))]
	return o, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// OK reports whether nothing failed and something passed.
func (o outcome) OK() bool { return len(o.Failed) == 0 && len(o.Passed) > 0 }

func (o outcome) String() string {
	var b strings.Builder
	for _, name := range o.Passed {
		fmt.Fprintf(&b, "passed    %s\n", name)
	}
	b.WriteString(reasons(o.LeftOut))
	for _, name := range sortedKeys(o.Failed) {
		fmt.Fprintf(&b, "FAILED    %s\n          %s\n", name, o.Failed[name])
	}
	for _, spec := range o.Slowest {
		fmt.Fprintf(&b, "took %s: %s\n", spec.RunTime.Round(time.Second), spec.name())
	}
	fmt.Fprintf(&b, "%d passed, %d failed, %d left out\n", len(o.Passed), len(o.Failed), len(o.LeftOut))
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
