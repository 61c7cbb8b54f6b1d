"""Studies: one scenario, varied along axes, on all cores or a Ray cluster."""
