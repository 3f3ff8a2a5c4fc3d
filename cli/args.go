package cli

import (
	"fmt"

	"github.com/spf13/cobra"
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
