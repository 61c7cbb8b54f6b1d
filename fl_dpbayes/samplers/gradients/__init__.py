"""The sum of clipped per-unit gradients: the only way in which records reach a sampler."""
