"""A posterior over hospitals, from what a `fald` run releases anyway; docs/hierarchical.md derives it."""
