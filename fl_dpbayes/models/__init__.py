"""Small modules that are safe to train with per-example clipping, their parameters as vectors, and priors."""
