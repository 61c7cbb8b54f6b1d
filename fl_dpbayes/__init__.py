"""Private, calibrated Bayesian federated learning for hospitals, on Flower."""

__version__ = "0.1.0"
