package drops

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/weftnet/weft/internal/unixhttp"
)

// Path is where an agent serves a Report on its local socket, and the Records
// from now on with FollowQuery.
const (
	Path        = "/drops"
	FollowQuery = "follow=true"
)

// Open asks the agent with a local socket. What is read is a Report, or with
// follow Records that do not end, as ReadReport and ReadRecords read them.
func Open(ctx context.Context, socket string, follow bool) (io.ReadCloser, error) {
	path := Path
	if follow {
		path += "?" + FollowQuery
	}
	return unixhttp.Ask(ctx, socket, http.MethodGet, path, nil)
}

// ReadReport reads a Report.
func ReadReport(r io.Reader) (Report, error) {
	var report Report
	err := json.NewDecoder(r).Decode(&report)
	return report, whole(err)
}

// ReadRecords calls f for each Record until there are no more, which is no
// error.
func ReadRecords(r io.Reader, f func(Record) error) error {
	decode := json.NewDecoder(r)
	for {
		var record Record
		err := decode.Decode(&record)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(record)
		}
		if err != nil {
			return whole(err)
		}
	}
}

// whole says of an answer that ended early that it did.
func whole(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the agent's answer is not whole")
	}
	return err
}
