package compile

// SetBudget sets how many endpoints the Services of a namespace have together, until it is called
// that is returned.
func SetBudget(n int) (back func()) {
	before := budget
	budget = n
	return func() { budget = before }
}
