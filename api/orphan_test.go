package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeOrphans reads what agents say of pods without objects, and what somebody says
// who has got hold of one.
func TestNodeOrphans(t *testing.T) {
	orphan := func(i int) Orphan {
		return Orphan{Namespace: "default", Name: "web", UID: fmt.Sprint("u", i), Addresses: []string{fmt.Sprint("10.1.0.", i), fmt.Sprintf("fd01::%x", i)}}
	}
	var many Orphans
	for i := range MaxOrphans + 3 {
		many.Pods = append(many.Pods, orphan(i+2))
	}
	encoded := func(o Orphans) string {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	with := func(change func(*Orphan)) string {
		o := orphan(2)
		change(&o)
		return encoded(Orphans{Pods: []Orphan{o}})
	}
	addresses := func(all ...string) string { return with(func(o *Orphan) { o.Addresses = all }) }
	long := strings.Repeat("a", 300)
	for name, test := range map[string]struct {
		text string
		want Orphans
		err  string
	}{
		"nothing":                  {},
		"what an agent writes":     {text: many.Text(), want: Orphans{many.Pods[:MaxOrphans], 3}},
		"more than are read":       {text: encoded(many), want: Orphans{many.Pods[:MaxOrphans], 3}},
		"one":                      {text: encoded(Orphans{Pods: many.Pods[:1]}), want: Orphans{Pods: many.Pods[:1]}},
		"one without a UID":        {text: `{"pods":[{"namespace":"a","name":"b","addresses":["10.1.0.2"]}]}`, want: Orphans{Pods: []Orphan{{Namespace: "a", Name: "b", Addresses: []string{"10.1.0.2"}}}}},
		"no JSON":                  {text: "x", err: "cannot be read: invalid character"},
		"JSON that is long":        {text: `{"more":1` + strings.Repeat("0", 5000) + `}`, err: "cannot be read: json: cannot unmarshal number"},
		"less than none":           {text: `{"pods":[{"namespace":"a","name":"b","addresses":["10.1.0.2"]}],"more":-1}`, err: "more is -1, not a number from 0 to"},
		"more than there can be":   {text: `{"more":9223372036854775807}`, err: "more is 9223372036854775807, not a number from 0 to"},
		"no namespace":             {text: with(func(o *Orphan) { o.Namespace = "" }), err: `pods[0]: namespace "" is no such name`},
		"a name that is long":      {text: with(func(o *Orphan) { o.Name = long }), err: `pods[0]: name "` + long[:64] + `…" is no such name`},
		"a name that is none":      {text: with(func(o *Orphan) { o.Name = "a\nb" }), err: `pods[0]: name "a\nb" is no such name`},
		"a UID that is long":       {text: with(func(o *Orphan) { o.UID = long }), err: "pods[0]: its uid has 300 bytes, more than 253"},
		"no address":               {text: addresses(), err: "pods[0]: it has no address"},
		"what is no address":       {text: addresses(long), err: `pods[0]: "` + long[:64] + `…" is no address`},
		"an address with a zone":   {text: addresses("fe80::1%eth0"), err: `pods[0]: "fe80::1%eth0" is no address of a pod`},
		"IPv4 within IPv6":         {text: addresses("::ffff:10.1.0.2"), err: `pods[0]: "::ffff:10.1.0.2" is no address of a pod`},
		"two of IPv4":              {text: addresses("10.1.0.2", "fd01::2", "10.1.0.3"), err: `pods[0]: "10.1.0.3" is a second address of its family`},
		"two of IPv6":              {text: addresses("fd01::2", "fd01::3"), err: `pods[0]: "fd01::3" is a second address of its family`},
		"one address of two":       {text: encoded(Orphans{Pods: []Orphan{orphan(2), orphan(2)}}), err: `pods[1]: "10.1.0.2" is the address of pods[0], too`},
		"one, written differently": {text: encoded(Orphans{Pods: []Orphan{orphan(2), {Namespace: "a", Name: "b", Addresses: []string{"fd01:0::2"}}}}), err: `pods[1]: "fd01:0::2" is the address of pods[0], too`},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{OrphansAnnotation: test.text}}}
			got, err := NodeOrphans(node)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			message := errorText(err)
			if test.err != "" && !strings.HasPrefix(message, "annotation "+OrphansAnnotation+" of Node node1 cannot be read: ") || !strings.Contains(message, test.err) || (test.err == "") != (message == "") {
				t.Errorf("the error is %q, and not %q", message, test.err)
			}
			if len(message) > 1200 {
				t.Errorf("the error has %d bytes", len(message))
			}
		})
	}
}
