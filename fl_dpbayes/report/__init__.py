"""What a run found, for people: records on disk, tables in the terminal, figures and one HTML report."""
