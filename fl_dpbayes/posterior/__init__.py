"""Posterior samples with their weights, the predictive distribution, convergence diagnostics."""
