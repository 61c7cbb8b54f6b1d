"""A posterior over hospitals, from what a `fald` run releases anyway.

Docs/hierarchical.md derives it.
"""
