package change

import (
	"encoding/json"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// facts are the parts of a saga's data that the table asks about.
type facts struct {
	MRIID          int64  `json:"mrIid"`
	Digest         string `json:"digest"`         // the change digest of the head
	ApprovedDigest string `json:"approvedDigest"` // the change digest that people approved
	CloseAs        string `json:"closeAs"`        // the final state that asked for the close
}

func factsOf(row saga.Row) facts {
	var f facts
	_ = json.Unmarshal(row.Data, &f) // data that can't be read holds no facts: nothing counts as approved
	return f
}

var (
	hasMR = saga.Guard{Name: "there is an MR", Holds: func(r saga.Row) bool { return factsOf(r).MRIID != 0 }}

	approved = saga.Guard{Name: "this content is approved", Holds: func(r saga.Row) bool {
		f := factsOf(r)
		return f.Digest != "" && f.Digest == f.ApprovedDigest
	}}

	mrFirst = saga.Guard{Name: "order mr_first", Holds: func(r saga.Row) bool { return r.Order == MRFirst }}
)

func closesAs(s saga.State) saga.Guard {
	return saga.Guard{Name: "closed for " + string(s), Holds: func(r saga.Row) bool { return factsOf(r).CloseAs == string(s) }}
}
