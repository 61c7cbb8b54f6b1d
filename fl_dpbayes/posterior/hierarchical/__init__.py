"""A posterior over hospitals, from what a `fald` run releases anyway; see docs/proofs/levels.md."""
