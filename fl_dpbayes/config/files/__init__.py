"""Files that keep what was computed: written whole or appended, each under a checksum that its readers compare."""
