package nft

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestParseElements reads a list of elements as the kernel sends it: with an interval's
// end, a range of a concatenation, a verdict, data, and a counter.
func TestParseElements(t *testing.T) {
	type attribute = nl.NetlinkRequestData
	attr := func(kind int, parts ...attribute) *nl.RtAttr {
		a := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
		for _, p := range parts {
			a.AddChild(p)
		}
		return a
	}
	value := func(kind int, b string) *nl.RtAttr { return nl.NewRtAttr(kind, []byte(b)) }
	be32 := func(kind int, n uint32) *nl.RtAttr { return nl.NewRtAttr(kind, binary.BigEndian.AppendUint32(nil, n)) }
	be64 := func(kind int, n uint64) *nl.RtAttr { return nl.NewRtAttr(kind, binary.BigEndian.AppendUint64(nil, n)) }
	list := attr(unix.NFTA_SET_ELEM_LIST_ELEMENTS,
		attr(unix.NFTA_LIST_ELEM,
			attr(unix.NFTA_SET_ELEM_KEY, value(unix.NFTA_DATA_VALUE, "aaaa")),
			attr(nftables.NFTA_SET_ELEM_KEY_END, value(unix.NFTA_DATA_VALUE, "abbb")),
			attr(unix.NFTA_SET_ELEM_DATA, attr(unix.NFTA_DATA_VERDICT, be32(unix.NFTA_VERDICT_CODE, uint32(0xffffffff&int64(expr.VerdictGoto))), value(unix.NFTA_VERDICT_CHAIN, "there\x00"))),
			attr(unix.NFTA_SET_ELEM_EXPR, value(unix.NFTA_EXPR_NAME, "counter\x00"),
				attr(unix.NFTA_EXPR_DATA, be64(unix.NFTA_COUNTER_BYTES, 5000), be64(unix.NFTA_COUNTER_PACKETS, 7)))),
		attr(unix.NFTA_LIST_ELEM,
			attr(unix.NFTA_SET_ELEM_KEY, value(unix.NFTA_DATA_VALUE, "cccc")),
			attr(unix.NFTA_SET_ELEM_DATA, value(unix.NFTA_DATA_VALUE, "data"))),
		attr(unix.NFTA_LIST_ELEM,
			be32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END),
			attr(unix.NFTA_SET_ELEM_KEY, value(unix.NFTA_DATA_VALUE, "dddd"))))
	message := slices.Concat(make([]byte, nl.SizeofNfgenmsg), nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, []byte("weft\x00")).Serialize(), list.Serialize())

	type found struct {
		element Element
		value   Value
		packets uint64
	}
	var got []found
	parseElements(message, func(e Element, v Value, packets uint64) { got = append(got, found{e, v, packets}) })
	want := []found{
		{Element{Key: "aaaa", Last: "abbb"}, Value{Verdict: GoTo("there")}, 7},
		{Element{Key: "cccc"}, Value{Data: "data"}, 0},
		{Element{Key: "dddd", End: true}, Value{}, 0},
	}
	if !slices.Equal(got, want) {
		t.Errorf("it is read as %+v; expected %+v", got, want)
	}
	for n := range len(message) {
		parseElements(message[:n], func(Element, Value, uint64) {}) // no part of it is more than can be read
	}
}

// TestElementsInOrder has one interval end where the next begins.
func TestElementsInOrder(t *testing.T) {
	e := Elements{{Key: "b"}: {}, {Key: "b", End: true}: {}, {Key: "a"}: {}, {Key: "c", End: true}: {}, {Key: "c", Last: "d"}: {}, {Key: "c", Last: "e"}: {}}
	want := []Element{{Key: "a"}, {Key: "b", End: true}, {Key: "b"}, {Key: "c", End: true}, {Key: "c", Last: "d"}, {Key: "c", Last: "e"}}
	if got := e.Keys(); !slices.Equal(got, want) {
		t.Errorf("the order is %v; expected %v", got, want)
	}
}
