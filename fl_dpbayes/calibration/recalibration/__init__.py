"""Maps of predicted probabilities, fitted after training: one file per method, named as its record in config."""
