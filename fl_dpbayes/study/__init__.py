"""The one experiment engine: a scenario along axes, its cells, their table and their page.

What comes in: a study file. What goes out: a folder of cells and their comparison.
"""
