"""Points in the plane, labelled by a logistic regression of each site's own."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import Logistic2D, OfficialPart
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.synthetic_records import (
    draw_labels,
    site_effects,
    sites_of_part,
    synthetic_records,
)

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SiteLaws:
    """The law of each site k = 1 .. K.

        x ~ N(m_k, [[1, r_k], [r_k, 1]]),  P(y = 1 | x) = sigmoid(b_k + w_k . x)

    Attributes:
        means: m, (K, 2).
        correlations: r, (K,), in (-1, 1).
        intercepts: b, (K,).
        slopes: w, (K, 2).
    """

    means: Array
    correlations: Array
    intercepts: Array
    slopes: Array


def site_laws(source: Logistic2D) -> SiteLaws:
    """Draw the sites' laws around the average site's.

        m_k = h u_k,  r_k = tanh(h u'_k),  b_k = b + h v_k,  w_k = w + h v'_k / 2
        all of u, u', v, v' ~ N(0, 1)

    Args:
        source: b, w and h are its `intercept`, `slopes` and `heterogeneity`; at h = 0 every site
            has the average law.
    """
    effects = site_effects(source, 6)
    return SiteLaws(
        means=effects[:, :2],
        correlations=np.tanh(effects[:, 2]),
        intercepts=source.intercept + effects[:, 3],
        slopes=np.asarray(source.slopes) + effects[:, 4:] / 2,
    )


def load(source: Logistic2D, part: OfficialPart) -> Records:
    """Draw one part of the source.

    Averaged over the records in a confidence bin, their truth p(y | x) is E[y | bin], by the tower
    property.

    Args:
        source: Seed, sites and their average law.
        part: `train` or `test`; the latter has new patients of the same hospitals.
    """
    laws = site_laws(source)
    sites, generator = sites_of_part(source, part)
    normal = generator.standard_normal((len(sites), 2))
    correlation = laws.correlations[sites]
    second = correlation * normal[:, 0] + np.sqrt(1 - correlation**2) * normal[:, 1]
    # The truth is that of the features as a site gets them, after rounding.
    features = (laws.means[sites] + np.stack([normal[:, 0], second], axis=1)).astype(np.float32)
    log_odds = laws.intercepts[sites] + (laws.slopes[sites] * features).sum(axis=1)
    records = synthetic_records(
        source,
        features=features,
        labels=draw_labels(log_odds, generator),
        log_odds=log_odds,
        sites=sites,
    )
    return replace(records, feature_names=("x1", "x2"))
