"""Attacks on the site's app: what it releases is held against what its account says.

What comes in: a scenario. What goes out: verdicts, and what was not looked at.
"""
