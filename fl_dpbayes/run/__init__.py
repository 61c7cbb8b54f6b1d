"""The composition root: engines and the work behind each command."""
