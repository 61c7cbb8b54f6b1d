"""Points in the plane of two classes, each a Gaussian around a mean of its own."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import GaussianClasses, OfficialPart
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.synthetic_records import (
    site_effects,
    sites_of_part,
    synthetic_records,
)


def class_means(source: GaussianClasses) -> npt.NDArray[np.float64]:
    """Draw the means of the sites' classes around those of the average site.

        m_ky = m_y + h u_k,  u_k ~ N(0, I)

    Args:
        source: m and h are its `means` and `heterogeneity`.

    Returns:
        Of site k and class y, shape (K, 2, 2).
    """
    moved = site_effects(source, 2)
    return np.asarray(source.means)[None] + moved[:, None]


def load(source: GaussianClasses, part: OfficialPart) -> Records:
    """Draw one part of the source.

        y ~ Bernoulli(1/2),  x ~ N(m_ky, I),
        log odds of y = 1: (m_k1 - m_k0) . x - (|m_k1|^2 - |m_k0|^2) / 2

    Args:
        source: Seed, sites and means.
        part: `train` or `test`; the latter has new patients of the same hospitals.

    Source:
        Zhang et al. 2022 (A closer look at the calibration of differentially private learners),
        figure 1.
    """
    means = class_means(source)
    sites, generator = sites_of_part(source, part)
    labels = generator.integers(2, size=len(sites))
    centers = means[sites, labels]
    # The truth is that of the features as a site gets them, after rounding.
    features = (centers + generator.standard_normal(centers.shape)).astype(np.float32)
    slopes = means[:, 1] - means[:, 0]
    offsets = (means[:, 0] ** 2 - means[:, 1] ** 2).sum(axis=1) / 2
    return synthetic_records(
        source,
        features=features,
        labels=labels,
        log_odds=(slopes[sites] * features).sum(axis=1) + offsets[sites],
        sites=sites,
    )
