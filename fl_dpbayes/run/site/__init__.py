"""What a hospital does at its own site."""
