package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// noArgs wants no arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, but %q was given (see: %s --help)", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}

// exactArgs wants n arguments, called what.
func exactArgs(what string, n int) cobra.PositionalArgs { return argsBetween(what, n, n) }

// argsBetween wants so many arguments, called what.
func argsBetween(what string, least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("%s wants %s, but %s (see: %s --help)", cmd.CommandPath(), what, given(args), cmd.CommandPath())
		}
		return nil
	}
}

// given says how many arguments were given.
func given(args []string) string {
	if len(args) == 1 {
		return "1 argument was given"
	}
	return fmt.Sprintf("%d arguments were given", len(args))
}

// someTime refuses a --timeout in which nothing can be waited for.
func someTime(timeout time.Duration) error {
	if timeout <= 0 {
		return fmt.Errorf("--timeout %s must be more than 0", timeout)
	}
	return nil
}

// wanted is what flags of a type take, of which the type itself says only how it cannot be read.
var wanted = map[string]string{
	"bool":     "true or false, or the flag alone for true",
	"duration": "a time such as 30s, 10m or 1h30m",
	"int":      "a whole number such as 3",
	"uint16":   "a number from 0 to 65535",
}

// inWords says of a value that a flag does not take what it takes.
func inWords(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	flag := invalid.GetFlag()
	if want := wanted[flag.Value.Type()]; want != "" {
		return fmt.Errorf("--%s %q: give %s", flag.Name, invalid.GetValue(), want)
	}
	return fmt.Errorf("--%s %q: %w", flag.Name, invalid.GetValue(), invalid.Unwrap())
}
