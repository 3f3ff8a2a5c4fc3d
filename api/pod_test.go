package api

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodNetwork(t *testing.T) {
	long := strings.Repeat("9", 1000)
	for _, test := range []struct {
		name        string
		annotations map[string]string
		want        PodSettings
		err         string
	}{
		{name: "none"},
		{name: "of others", annotations: map[string]string{"example.com/x": "y", "kubernetes.io/config.source": "api"}},
		{name: "bandwidth", annotations: map[string]string{IngressBandwidth: "10M", EgressBandwidth: "1Gi"}, want: PodSettings{Ingress: 10_000_000, Egress: 1 << 30}},
		{name: "least and greatest", annotations: map[string]string{IngressBandwidth: "1k", EgressBandwidth: "1P"}, want: PodSettings{Ingress: 1000, Egress: 1_000_000_000_000_000}},
		{name: "no quantity", annotations: map[string]string{IngressBandwidth: "fast"},
			err: `annotation kubernetes.io/ingress-bandwidth="fast": must be a quantity of bit/s such as 10M`},
		{name: "out of range", annotations: map[string]string{IngressBandwidth: "999", EgressBandwidth: "2P"},
			err: `annotation kubernetes.io/egress-bandwidth="2P": must be between 1k and 1P bit/s; ` +
				`annotation kubernetes.io/ingress-bandwidth="999": must be between 1k and 1P bit/s`},
		{name: "negative", annotations: map[string]string{IngressBandwidth: "-5M"},
			err: `annotation kubernetes.io/ingress-bandwidth="-5M": must be between 1k and 1P bit/s`},
		{name: "huge", annotations: map[string]string{EgressBandwidth: long},
			err: `annotation kubernetes.io/egress-bandwidth="` + long[:64] + `…": must be a quantity of bit/s such as 10M`},
		{name: "costly", annotations: map[string]string{EgressBandwidth: "1e20000000"},
			err: `annotation kubernetes.io/egress-bandwidth="1e20000000": must be a quantity of bit/s such as 10M`},
		{name: "unknown to Weft", annotations: map[string]string{"weft.network/mtu": "9000"},
			err: "annotation weft.network/mtu: this version of Weft knows no such annotation of a pod; remove it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := PodNetwork(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}})
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if message := errorText(err); message != test.err {
				t.Errorf("got the error %q, want %q", message, test.err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestAPodIsKnownByItsUID(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "b", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"}}}
	for _, test := range []struct {
		pod  *corev1.Pod
		uid  string
		want bool
	}{{pod, "a", true}, {pod, "b", false}, {pod, "", true}, {mirror, "hash", true}, {mirror, "b", true}, {mirror, "a", false}} {
		if got := IsPod(test.pod, test.uid); got != test.want {
			t.Errorf("IsPod(%s, %q) = %v", test.pod.UID, test.uid, got)
		}
	}
}

func FuzzPodNetwork(f *testing.F) {
	f.Add("10M", "1Gi")
	f.Add("", "-1")
	f.Add("1e400", "0x1p3")
	f.Fuzz(func(t *testing.T, ingress, egress string) {
		s, err := PodNetwork(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{IngressBandwidth: ingress, EgressBandwidth: egress}}})
		for _, rate := range []int64{s.Ingress, s.Egress} {
			if err == nil && (rate < MinBandwidth || rate > MaxBandwidth) || err != nil && rate != 0 {
				t.Errorf("%q and %q give %+v, %v", ingress, egress, s, err)
			}
		}
	})
}
