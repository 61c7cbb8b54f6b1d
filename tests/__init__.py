"""Tests; a package, as some installed ones bring a package of this name along."""
