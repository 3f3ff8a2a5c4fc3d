// Package grafana holds weft.json, a dashboard of Weft's metrics for Grafana, in its classic JSON
// model: import it as it is, or have the chart put it into a ConfigMap (grafana.dashboard.enabled).
// The package's tests hold it to what programs register.
package grafana
