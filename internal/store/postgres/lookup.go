package postgres

// lookUp is column = value, written so that PostgreSQL can only look each value
// up in the column's index. Equal columns it joins as it sees fit: where it
// expects many values, it reads both tables from end to end in the order of
// their keys, for the few rows that are due. And it expects many wherever a
// LIMIT is not a constant: a tenth of the table. An array of one is a key of the
// index all the same, and no equation that two sorted or hashed sides could be
// joined by.
func lookUp(column, value string) string {
	return column + " = ANY (ARRAY[" + value + "])"
}
