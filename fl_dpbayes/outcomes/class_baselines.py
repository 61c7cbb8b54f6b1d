"""What simpler predictors of classes predict, fitted to training records without privacy."""

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration import Floats, entropies, on_grid
from fl_dpbayes.data import SiteSplit
from fl_dpbayes.outcomes.outcome import Baseline, FittedBaselines
from fl_dpbayes.posterior import Prediction

# A regression on more numbers than this would take longer than the run beside it.
MOST_NUMBERS = 20_000_000
Predict = Callable[[SiteSplit], Prediction]


def fit_baselines(
    training: Mapping[str, SiteSplit], scored: bool, *, classes: int
) -> FittedBaselines:
    """Fit each baseline to training records.

    `majority`: the class shares of all training records for everybody. `site_only` and `central`:
    scikit-learn's logistic regression with an L2 penalty (C = 1) on the features of one training
    site, and of all of them. `published`: the score that came with the records.

    Args:
        training: Site -> its training records.
        scored: Whether all test records have a published score.
        classes: How many there are.
    """
    features = np.concatenate([part.features for part in training.values()])
    labels = np.concatenate([part.labels for part in training.values()])
    fitted = [Baseline(predictor="majority", predict=_shares(labels, classes))]
    missing = {}
    reason = _reason_without_regression(features, classes)
    if reason:
        missing["site_only"] = reason
        missing["central"] = reason
    else:
        for name, part in training.items():
            regression = _regression(part.features, part.labels, classes)
            fitted.append(Baseline(predictor="site_only", predict=regression, trained_at=name))
        regression = _regression(features, labels, classes)
        fitted.append(Baseline(predictor="central", predict=regression))
    if scored:
        fitted.append(Baseline(predictor="published", predict=_published))
    else:
        missing["published"] = "the data set has none"
    return FittedBaselines(fitted=tuple(fitted), missing=missing)


def _shares(labels: npt.NDArray, classes: int) -> Predict:
    shares = np.bincount(labels, minlength=classes) / len(labels)

    def predict(part: SiteSplit) -> Prediction:
        return _prediction(np.tile(shares, (len(part.labels), 1)))

    return predict


def _reason_without_regression(features: npt.NDArray, classes: int) -> str:
    if features.ndim != 2:
        return "the features are no vectors of numbers"
    if features.size * classes > MOST_NUMBERS:
        return "there are too many records and features to fit it beside a run"
    return ""


def _regression(features: npt.NDArray, labels: npt.NDArray, classes: int) -> Predict:
    # A second to import, and not every run has baselines.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    present = np.unique(labels)
    model = LogisticRegression(max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if len(present) > 1:
            model.fit(features, labels)

    def predict(part: SiteSplit) -> Prediction:
        probabilities = np.zeros((len(part.labels), classes))
        if len(probabilities):
            probabilities[:, present] = (
                model.predict_proba(part.features) if len(present) > 1 else 1.0
            )
        return _prediction(probabilities)

    return predict


def _published(part: SiteSplit) -> Prediction:
    assert part.published is not None
    return _prediction(np.stack([1 - part.published, part.published], axis=1))


def _prediction(probabilities: Floats) -> Prediction:
    return of_one_sample(on_grid(probabilities))


def of_one_sample(probabilities: Floats) -> Prediction:
    """Return probabilities, (N, C), of which nobody knows how far samples agree."""
    total = entropies(probabilities)
    return Prediction(
        probabilities=probabilities,
        total=total,
        aleatoric=total,
        epistemic=np.zeros_like(total),
    )
