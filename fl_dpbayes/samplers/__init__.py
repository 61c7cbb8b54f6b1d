"""One sampler per file, and the chain that runs it at a site."""
