"""Writes pages of docs/ that follow from the code."""
