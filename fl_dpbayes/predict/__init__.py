"""Uses the posterior that a run stored, for new records and for hospitals that did not train.

What comes in: a run folder and records. What goes out: probabilities, measures, updated posteriors
and releases that the site's ledger paid for.
"""
