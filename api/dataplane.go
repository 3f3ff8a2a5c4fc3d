package api

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/internal/printable"
)

// DataPlaneAnnotation names, on a Node, the data plane that the node is to use. It
// goes before ClusterConfigSpec.DataPlane, and is for users to set: the node's agent
// has the one that is named take over while pods run. A name that there is not is a
// problem of the Node, and the node goes on with the data plane that it has.
const DataPlaneAnnotation = "weft.network/data-plane"

// DataPlaneReportAnnotation holds, on a Node, which data plane it uses, as a
// DataPlaneReport in JSON.
const DataPlaneReportAnnotation = "weft.network/data-plane-report"

// CapabilitiesAnnotation holds, on a Node, what its data plane can do there, in the
// form of datapath.Capabilities.
const CapabilitiesAnnotation = "weft.network/capabilities"

// AskedDataPlane returns the data plane that a Node's annotation asks for, empty where
// it asks for none. Agents of earlier versions kept under that name what
// CapabilitiesAnnotation holds: an object in JSON, which names none.
func AskedDataPlane(node *corev1.Node) string {
	name := strings.TrimSpace(node.Annotations[DataPlaneAnnotation])
	if strings.HasPrefix(name, "{") {
		return ""
	}
	return name
}

// DataPlaneReport is which data plane a node uses, as its agent says.
type DataPlaneReport struct {
	// Uses is the one in force, empty while none is.
	Uses string `json:"uses,omitempty"`
	// Wants is the one that is to take over, empty where none is. Why it has not yet
	// is among the Node's problems.
	Wants string `json:"wants,omitempty"`
}

// Text is the annotation's value.
func (r DataPlaneReport) Text() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings alone
	}
	return string(text)
}

// maxDataPlaneReport is more bytes than such a report has.
const maxDataPlaneReport = 512

// NodeDataPlane returns what a Node's agent said of its data plane; the zero report
// where it has said nothing. It fails where that is nothing that an agent of Weft's
// says.
func NodeDataPlane(node *corev1.Node) (DataPlaneReport, error) {
	var r DataPlaneReport
	text := node.Annotations[DataPlaneReportAnnotation]
	if text == "" {
		return r, nil
	}
	err := fmt.Errorf("it has %d bytes, more than %d", len(text), maxDataPlaneReport)
	if len(text) <= maxDataPlaneReport {
		err = json.Unmarshal([]byte(text), &r)
	}
	for _, field := range []struct{ name, value string }{{"uses", r.Uses}, {"wants", r.Wants}} {
		// Data planes are named as plug-ins are.
		if err == nil && field.value != "" && !pluginName.MatchString(field.value) {
			err = fmt.Errorf("%s: %q is no name of a data plane", field.name, shorten(field.value))
		}
	}
	if err != nil {
		return DataPlaneReport{}, fmt.Errorf("annotation %s of Node %s cannot be read: %s", DataPlaneReportAnnotation, node.Name, printable.Brief(err.Error()))
	}
	return r, nil
}
