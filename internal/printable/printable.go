// Package printable writes text for people in which nothing that others say can move
// the cursor, turn the direction, begin a line or fill the screen. Names and messages
// come from agents, and who has got hold of one can have it say anything.
//
// Formats are the writer's own, so their newlines and tabs stay; what is put into
// them is one line.
package printable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Line returns text as it may be shown within a line: a newline becomes a semicolon
// and a space, a tab a space, and anything else that is not printable its escape in
// Go. What is not UTF-8 becomes U+FFFD.
func Line(text string) string {
	return escaped(text, func(b *strings.Builder, r rune) {
		switch r {
		case '\n':
			b.WriteString("; ")
		case '\t':
			b.WriteByte(' ')
		default:
			escape(b, r)
		}
	})
}

// Lines is Line for text that has lines of its own: newlines stay.
func Lines(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = Line(l)
	}
	return strings.Join(lines, "\n")
}

func escape(b *strings.Builder, r rune) {
	if r > 0xffff {
		fmt.Fprintf(b, `\U%08x`, r)
		return
	}
	fmt.Fprintf(b, `\u%04x`, r)
}

// escaped returns text with that written for each rune that is not printable.
func escaped(text string, write func(*strings.Builder, rune)) string {
	var b strings.Builder
	for _, r := range text {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			write(&b, r)
		}
	}
	return b.String()
}

// MaxBrief is how much Brief leaves of a message, in runes.
const MaxBrief = 1000

// Brief returns the beginning of a message, with "…" where something is left out.
func Brief(message string) string {
	n := 0
	for i := range message {
		if n == MaxBrief {
			return message[:i] + "…"
		}
		n++
	}
	return message
}

// MaxNamed is how many names Few leaves of a list, and how many messages Sentence does.
const MaxNamed = 3

// Few returns the first of some names as they stand in a sentence, and how many
// others there are: those of names, and others besides, which have none here.
func Few(names []string, others int) string {
	text := strings.Join(names[:min(len(names), MaxNamed)], ", ")
	if others += max(len(names)-MaxNamed, 0); others > 0 {
		text += fmt.Sprintf(" and %d more", others)
	}
	return text
}

// Sentence returns the first of some messages as one sentence, and how many others there are.
func Sentence(messages []string) string {
	text := strings.Join(messages[:min(len(messages), MaxNamed)], "; ")
	if others := len(messages) - MaxNamed; others > 0 {
		text += fmt.Sprintf("; and %d more", others)
	}
	return text
}

// Fprintf is fmt.Fprintf, but that what the format has of an argument is one Line.
// An int stays one, so that it can be a width.
func Fprintf(w io.Writer, format string, args ...any) (int, error) {
	if false {
		_ = fmt.Sprintf(format, args...) // has go vet check who calls this
	}
	safe := make([]any, len(args))
	for i, a := range args {
		if n, is := a.(int); is {
			safe[i] = n
		} else {
			safe[i] = argument{a}
		}
	}
	return fmt.Fprintf(w, format, safe...)
}

// argument formats a value as a Line.
type argument struct{ value any }

// Format implements fmt.Formatter.
func (a argument) Format(s fmt.State, verb rune) {
	io.WriteString(s, Line(fmt.Sprintf(fmt.FormatString(s, verb), a.value)))
}

// JSON writes a value as JSON, each level indented by indent, or in one line if that
// is empty. encoding/json escapes some of what is not printable; here all is.
func JSON(w io.Writer, indent string, value any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", indent)
	if err := e.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(w, escaped(text.String(), func(b *strings.Builder, r rune) {
		switch high, low := utf16.EncodeRune(r); {
		case r == '\n':
			b.WriteByte('\n')
		case r > 0xffff:
			escape(b, high)
			escape(b, low)
		default:
			escape(b, r)
		}
	}))
	return err
}
