"""What the coordinator of a deployed federation runs: certificates, kits, runs.

What comes in: names of hospitals and a scenario. What goes out: folders to hand out, and a run
folder.
"""
