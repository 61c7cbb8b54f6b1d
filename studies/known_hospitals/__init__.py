"""Hospitals whose levels are known: do the intervals for a hospital that nobody has seen hold?"""
