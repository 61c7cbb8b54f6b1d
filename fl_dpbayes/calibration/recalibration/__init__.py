"""Maps of predicted probabilities, fitted after training: one file per method of config."""
