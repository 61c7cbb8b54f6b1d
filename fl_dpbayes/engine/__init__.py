"""Runs a scenario from its plan to its page, in this process or by Flower.

What comes in: a scenario and a data folder. What goes out: a run folder.
"""
