"""One source of records per file."""
