"""From the sites' samples to one posterior: one rule per file."""
