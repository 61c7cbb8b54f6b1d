"""Attacks of one site on a round that keep to what the server accepts: shapes, plan and distance from the start."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# A rejected reply harms nobody, so attacks stay a little within the bound.
WITHIN = 0.99
# Parameters that do not vary at all are noticed by every rule with precisions.
TRACE = 0.005
FROZEN_NORM = 3.0


@dataclass(frozen=True)
class View:
    """What a hostile site knows when it answers a round.

    Attributes:
        start: the state that the round starts from, shape (d,).
        right: parameters fitted to its own records.
        wrong: parameters fitted to them with every label replaced by the next class.
        honest: its own honest chain after each kept step, and at the end, shape (m, d).
        farthest: how far from the start the server lets each of these be, shape (m,).
    """

    start: Array
    right: Array
    wrong: Array
    honest: Array
    farthest: Array


def relabel(view: View) -> Array:
    """Go from right to wrong labels as far as is accepted, every round again."""
    return view.start + WITHIN * view.farthest[:, np.newaxis] * _unit(view.wrong - view.right)


def reverse(view: View) -> Array:
    """Go away from what the records teach as far as is accepted: the opposite of what honest sites do."""
    return view.start - WITHIN * view.farthest[:, np.newaxis] * _unit(view.right - view.start)


def frozen(view: View) -> Array:
    """Go to a model of wrong labels that is too sure, and stay: a chain without spread looks most precise."""
    way = FROZEN_NORM * view.wrong - view.start
    lengths = np.minimum(WITHIN * view.farthest, np.linalg.norm(way))
    return view.start + lengths[:, np.newaxis] * _unit(way)


def hidden(view: View) -> Array:
    """Go as far as an honest chain does, equally in every parameter and always towards wrong labels.

    In no parameter, and not in length, does it stand out from honest noise.

    References:
        Baruch, Baruch and Goldberg 2019, "A little is enough: circumventing defenses for distributed learning".
    """
    lengths = np.linalg.norm(view.honest - view.start, axis=1)
    return view.start + lengths[:, np.newaxis] * _unit(np.sign(view.wrong - view.right))


ATTACKS = {"relabel": relabel, "reverse": reverse, "frozen": frozen, "hidden": hidden}


def with_trace_of_noise(states: Array, view: View) -> Array:
    """Add a little of honest noise, so that no parameter is constant."""
    return states + TRACE * (view.honest - view.honest.mean(axis=0) if len(view.honest) > 1 else 0.0)


def _unit(vector: Array) -> Array:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
