"""Privacy-loss distributions: an upper bound on epsilon from a fixed schedule."""
