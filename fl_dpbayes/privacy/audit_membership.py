"""Membership inference by a threshold on the loss: who was trained on has, on average, the smaller loss."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score, roc_curve

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MembershipScore:
    """How well the loss tells members from others.

    Attributes:
        members: number of units that were trained on.
        others: number of units that were not.
        area: probability that a member's loss lies below another's; 0.5 is chance.
        area_standard_error: of `area`.
        advantage: largest true-positive minus false-positive rate over all thresholds, in [0, 1]; chosen on the same
            losses, so biased upwards.
        advantage_bound: the largest that the claimed epsilon and delta allow.
    """

    members: int
    others: int
    area: float
    area_standard_error: float
    advantage: float
    advantage_bound: float


def loss_threshold_attack(
    member_losses: Array, other_losses: Array, *, epsilon: float, delta: float
) -> MembershipScore:
    """Score the attack "a unit was trained on if its loss lies below a threshold".

    Under (epsilon, delta) no attack has more advantage than (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).

    Args:
        member_losses: losses of units that were trained on, at least one.
        other_losses: losses of units of the same population that were not, at least one.
        epsilon: the claim, 0 or more, may be infinite.
        delta: in (0, 1).

    Returns:
        The score.

    Source:
        Yeom et al. (2018) for the attack; Kairouz, Oh and Viswanath (2015), theorem 2.1, for the bound; Hanley and
        McNeil (1982) for the standard error.
    """
    members, others = len(member_losses), len(other_losses)
    labels = np.concatenate([np.ones(members), np.zeros(others)])
    scores = -np.concatenate([member_losses, other_losses])
    false_positive, true_positive, _ = roc_curve(labels, scores)
    area = float(roc_auc_score(labels, scores))
    return MembershipScore(
        members=members,
        others=others,
        area=area,
        area_standard_error=_standard_error(area, members, others),
        advantage=float((true_positive - false_positive).max()),
        advantage_bound=min(1.0, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0)))),
    )


def _standard_error(area: float, members: int, others: int) -> float:
    pair = area / (2 - area) - area**2
    mirrored = 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + (members - 1) * pair + (others - 1) * mirrored
    return math.sqrt(max(0.0, variance) / (members * others))
