"""Aggregation of the last layer alone, for models whose features are frozen or shared by all sites.

Rules that average weights need units that mean the same at every site. With one feature extractor for all, the last
layer's do, and it is small enough for full covariances. Any rule can be used on the selected samples.
"""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.protocol.arrays import Arrays


def last_layer_names(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Name the parameters of a model's last layer.

    Args:
        shapes: parameter name -> shape, in the order of the model.

    Returns:
        The names that share the last one's module, e.g. ("3.weight", "3.bias").

    Raises:
        ValueError: if there is no parameter.
    """
    if not shapes:
        raise ValueError("the model has no parameter")
    module = list(shapes)[-1].rpartition(".")[0]
    return tuple(name for name in shapes if name.rpartition(".")[0] == module)


def selected(samples: PosteriorSamples, names: tuple[str, ...]) -> PosteriorSamples:
    """Keep some parameters of every sample; weights and temperatures stay.

    Args:
        samples: samples of the whole model.
        names: which parameters to keep.

    Returns:
        The smaller samples.
    """
    return PosteriorSamples({name: samples.arrays[name] for name in names}, samples.weights, samples.temperatures)


def restored(samples: PosteriorSamples, features: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> PosteriorSamples:
    """Put the shared feature parameters back into every sample, the inverse of `selected`.

    Args:
        samples: M samples of the selected parameters.
        features: the values of all other parameters, the same for every sample.
        shapes: parameter name -> shape of the whole model, in its order.

    Returns:
        Samples of the whole model; the feature arrays are read-only views that take no memory per sample.

    Raises:
        ValueError: if a parameter is missing, or has another shape.
    """
    whole = {
        name: samples.arrays[name]
        if name in samples.arrays
        else np.broadcast_to(features[name], (len(samples), *features[name].shape))
        for name in shapes
        if name in samples.arrays or name in features
    }
    differing = [name for name, shape in shapes.items() if name not in whole or whole[name].shape[1:] != tuple(shape)]
    if differing:
        raise ValueError(f"parameters {differing[:3]} are missing or have another shape than the model's")
    return PosteriorSamples(whole, samples.weights, samples.temperatures)


def feature_warnings(site_samples: Mapping[str, PosteriorSamples], features: Arrays) -> tuple[str, ...]:
    """Warn where a site's features are not the shared ones, so that its last layer reads other features.

    Args:
        site_samples: site -> samples of the whole model.
        features: the values of the parameters outside the last layer.

    Returns:
        One warning per site that moved a feature parameter.
    """
    warnings = []
    for site in sorted(site_samples):
        arrays = site_samples[site].arrays
        moved = [name for name, value in features.items() if not (arrays[name] == value).all()]
        if moved:
            warnings.append(
                f"site {site!r} has features of its own ({moved[0]!r} has moved): its last layer does not fit the "
                "shared features"
            )
    return tuple(warnings)
