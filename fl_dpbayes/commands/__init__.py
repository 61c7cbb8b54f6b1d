"""The small commands that need no room of their own.

What comes in: options as they were typed. What goes out: a table, a file or a line to the
terminal.
"""
