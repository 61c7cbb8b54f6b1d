"""Does the released noise match the claim? Canaries, recomputed sums and repeated runs."""
