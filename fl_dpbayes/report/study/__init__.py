"""What a study found, for people: one page with its answer, figures and tables."""
