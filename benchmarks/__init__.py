"""Scripts that are no federation, or attack one; they come with the source tree, not with the package."""
