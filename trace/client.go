package trace

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/weftnet/weft/internal/unixhttp"
)

// The paths on an agent's local socket. A Watch posted to Path is answered with
// Events until its time is over or the connection ends; one that sends begins to
// once its ID is posted to SendPath. Once it is posted to EndPath the agent tells
// what there is yet, and then an Ended event.
const (
	Path     = "/trace"
	SendPath = "/trace/send"
	EndPath  = "/trace/end"
)

// Open has the agent with a local socket watch. What is read are Events, as
// ReadEvents reads them.
func Open(ctx context.Context, socket string, w Watch) (io.ReadCloser, error) {
	body, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	return unixhttp.Ask(ctx, socket, http.MethodPost, Path, body)
}

// Send has the agent send the probe that it watches for.
func Send(ctx context.Context, socket, id string) error {
	return tell(ctx, socket, SendPath, id)
}

// End has the agent tell what there is yet of a probe, and end.
func End(ctx context.Context, socket, id string) error {
	return tell(ctx, socket, EndPath, id)
}

func tell(ctx context.Context, socket, path, id string) error {
	answer, err := unixhttp.Ask(ctx, socket, http.MethodPost, path, []byte(id))
	if err != nil {
		return err
	}
	return answer.Close()
}

// ReadEvents calls f for each Event until there are no more, or f fails.
func ReadEvents(r io.Reader, f func(Event) error) error {
	decode := json.NewDecoder(r)
	for {
		var e Event
		err := decode.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(e)
		}
		if err != nil {
			return err
		}
	}
}
