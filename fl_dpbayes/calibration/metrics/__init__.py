"""What is measured of predictions: one function per metric, named as in config."""
