// Package kill kills the processes of a cluster at random moments and looks at
// what is left. It has tests only; by hand, a longer one is
//
//	go test ./test/kill -kills 2000 -seed 7 -timeout 2h
package kill
