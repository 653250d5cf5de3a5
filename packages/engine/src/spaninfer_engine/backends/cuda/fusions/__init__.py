"""Claims: one kernel for several operators of the table."""
