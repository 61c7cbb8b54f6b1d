"""The sentence of every kind of warning, and the same warning of several sites as one line."""

import string
from collections.abc import Iterable
from typing import Any

from fl_dpbayes.config.plural import counted
from fl_dpbayes.config.warning import RunWarning, Value

_STEPS = "Lengthen burn_in or run more steps."
_LARGER_STEPS = "Lengthen burn_in, run more steps, or take larger steps (hotter if private)."
_APART = "{between} in {share:.0%} of the quantities looked at (R-hat above 1.1, largest {largest:.2f}). {remedy}"
_DROPPED = "a reply to no open request was dropped: a duplicate, or one that came too late"
_POINT = "a point estimate, whose epistemic uncertainty is unknown, not none"

# `{name:count noun}` writes "1 noun", "2 nouns"; all else is as in `str.format`.
SENTENCES = {
    # who takes part
    "no-card": "a node did not join: {reason}",
    "card-changed": "{site} did not come back: its card is not what it was",
    "other-task": "{site} did not join: its records or classes differ from {task}",
    "came-back": "round {round}: {site} came back",
    "moved": "round {round}: {site} came back on another node",
    "joined": "round {round}: {site} joined the training",
    "silent": "{site} gave no reply in {silent} rounds in a row (resources.silent_rounds) and is asked to train no more",
    "missing": "{site} was missing when the run was resumed",
    "prior-repeated": "the plan shares the prior between the {planned} training sites of the start and more have "
    "joined: the posterior counts it {times:.3g} times",
    "few-sites-share": "only {sites:count site} took part, so each weighs {weight:.3g}, above aggregation.largest_share "
    "{share:g}",
    "heavy-site": "{site} declares {units} of {all} units and has {weight:.0%} of the weight, more than all other sites "
    "together; its size is its own word: set aggregation.largest_share, or aggregation.site_weights to 'uniform', if "
    "that need not be believed",
    # replies
    "dropped": f"{{stage}}: {_DROPPED}",
    "not-used": "round {round}: {site}: {status} {detail}",
    "not-private": "Nothing here is private: privacy.kind is 'none'. What the sites released may show any of their "
    "records.",
}


class _Words(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("count "):
            return counted(value, format_spec.removeprefix("count "))
        # A number that is not finite comes as text.
        return value if isinstance(value, str) else super().format_field(value, format_spec)
