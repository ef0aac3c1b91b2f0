"""The rows of the table, one module a group."""
