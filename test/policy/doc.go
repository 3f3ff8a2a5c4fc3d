// Package policy holds the compiler of network policies against package oracle,
// which reads the policies' definitions word by word: both are asked about the
// same packets in the same random clusters, as these are and after each of some
// changes, and must agree on what is allowed and by which rule. It has tests
// only.
//
// generate_test.go makes clusters, compare_test.go asks both sides, and
// shrink_test.go makes the smallest story of a difference, which is kept in
// testdata/found and told again by every test. A failure says by which flags it
// comes again:
//
//	go test ./test/policy -run TestOracle -seed 7 -cluster 1234
//
// `make prove` tries a million packets, and two thousand with real ones.
package policy
