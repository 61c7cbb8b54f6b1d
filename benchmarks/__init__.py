"""Scripts that are no federation, or attack one.

They come with the source tree, not with the package.
"""
