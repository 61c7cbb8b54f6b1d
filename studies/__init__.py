"""Analyses that a TOML file cannot say."""
