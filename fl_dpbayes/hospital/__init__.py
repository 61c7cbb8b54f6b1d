"""What a hospital's staff runs: check, approve, start, ledger, audit log, statement.

What comes in: a site file. What goes out: the site's own node, and words and signed files for its
officers.
"""
