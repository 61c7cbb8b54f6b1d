"""What is measured of predictions, one function of merged statistics per metric, named as its record in config."""
