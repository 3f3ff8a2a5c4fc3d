// Package flannel holds Weft against the real flanneld: nodes that run
// flanneld with Debian's CNI plug-ins and nodes that run Weft's agent share one
// etcd, or one API server of Kubernetes, and their pods must reach each other.
//
// There is only a test here. Each machine is a network namespace; the
// processes in it are the real ones. The script build-flanneld builds flanneld,
// which is looked for at $WEFT_FLANNELD or in the user's cache directory.
package flannel
