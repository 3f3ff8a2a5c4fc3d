package service

// SetBudget has the Services of a namespace make no more than so much, until what it returns is called.
func SetBudget(frontends, backends int) (reset func()) {
	was := budget
	budget = size{frontends, backends}
	return func() { budget = was }
}
