"""Step sizes, the noise couplings that follow from them, and the temperatures that result."""
