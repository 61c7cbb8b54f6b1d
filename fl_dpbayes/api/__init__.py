"""The Python face: what `import fl_dpbayes as fl` offers.

What comes in: frames, modules, data sets and settings. What goes out: runs, chains and strategies.
"""
