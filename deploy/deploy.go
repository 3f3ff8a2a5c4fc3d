// Package deploy holds what installs Weft in a Kubernetes cluster: a Helm
// chart, and weft.yaml, which is rendered from it, for kubectl apply. It has
// tests only: cheap ones of the text, and ones that have a real API server take
// the manifests and refuse what the kinds do not allow.
//
// The kinds are in chart/files/crds. After a change to the chart, render
// weft.yaml again with make generate.
package deploy
