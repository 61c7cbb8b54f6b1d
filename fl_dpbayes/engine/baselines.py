"""What simpler predictors reach on a simulation's test records, without privacy.

The page shows them beside the run. They read the records of every virtual site in this process,
which a run of real hospitals cannot.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration import METRICS, CalibrationStatistics, from_batch, on_grid
from fl_dpbayes.config import Role, Scenario, read_site_file
from fl_dpbayes.data import BASELINES, Site, SiteSplit, load_site
from fl_dpbayes.files import RunStore
from fl_dpbayes.report import BaselineRecord, Baselines

SHOWN = ("accuracy", "nll", "auroc", "rms_debiased")
# A regression on more numbers than this would take longer than the run beside it.
MOST_NUMBERS = 20_000_000
Predict = Callable[[SiteSplit], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Baseline:
    """A simple predictor that was fitted to training records.

    Attributes:
        predictor: Its name in the summary.
        predict: Class probabilities of records, (N, classes).
        trained_at: The one site that it was fitted to; "" for all of them.
    """

    predictor: str
    predict: Predict
    trained_at: str = ""


def write_baselines(scenario: Scenario, site_files: Sequence[Path], run_folder: Path) -> None:
    """Measure the baselines on the test records of each role, and store them for the summary.

    Args:
        scenario: The run's scenario.
        site_files: Those of all virtual sites.
        run_folder: The run directory.

    Raises:
        UserError: If a site cannot be loaded or the store not be written.
    """
    if not scenario.evaluation.baselines:
        reason = (
            "it would read the training records without privacy, which evaluation.baselines "
            "does not allow"
        )
        result = Baselines(missing={"all": reason})
    elif scenario.evaluation.release != "public":
        reason = "the sites' test records are not declared public (evaluation.release)"
        result = Baselines(missing={"all": reason})
    else:
        result = baselines([load_site(read_site_file(path)) for path in site_files])
    with RunStore.open(run_folder) as store:
        store.append(**{BASELINES: result.model_dump(mode="json", exclude_unset=True)})


def baselines(sites: Sequence[Site]) -> Baselines:
    """Fit each baseline to virtual sites' training records, and measure it on test records.

    `majority`: the class shares of all training records for everybody. `site_only` and `central`:
    scikit-learn's logistic regression with an L2 penalty (C = 1) on the features of one training
    site, and of all of them. `published`: the score that came with the records.

    Args:
        sites: All sites of a run.

    Returns:
        A row for each baseline and role, and why a baseline is missing.
    """
    classes = sites[0].task.outcome.classes
    training = {site.name: site.train for site in sites if site.train is not None}
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
    if all(site.test.published is not None for site in sites):
        fitted.append(Baseline(predictor="published", predict=_published))
    else:
        missing["published"] = "the data set has none"
    parts_by_role: dict[Role, list[SiteSplit]] = {}
    for site in sites:
        parts_by_role.setdefault(site.role, []).append(site.test)
    roles = {role: _joined(parts) for role, parts in parts_by_role.items()}
    rows = [
        _row(baseline, role, part)
        for baseline in fitted
        for role, part in roles.items()
        if len(part.labels)
    ]
    return Baselines(rows=tuple(rows), missing=missing)


def _shares(labels: npt.NDArray, classes: int) -> Predict:
    shares = np.bincount(labels, minlength=classes) / len(labels)

    def predict(part: SiteSplit) -> npt.NDArray[np.float64]:
        return np.tile(shares, (len(part.labels), 1))

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

    def predict(part: SiteSplit) -> npt.NDArray[np.float64]:
        probabilities = np.zeros((len(part.labels), classes))
        if len(probabilities):
            probabilities[:, present] = (
                model.predict_proba(part.features) if len(present) > 1 else 1.0
            )
        return probabilities

    return predict


def _published(part: SiteSplit) -> npt.NDArray[np.float64]:
    assert part.published is not None
    return np.stack([1 - part.published, part.published], axis=1)


def _joined(parts: Sequence[SiteSplit]) -> SiteSplit:
    """Join all that a baseline looks at."""
    published = [part.published for part in parts if part.published is not None]
    return replace(
        parts[0],
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        published=np.concatenate(published or [np.zeros(0)]),
    )


def _row(baseline: Baseline, role: Role, part: SiteSplit) -> BaselineRecord:
    place = {
        "site": f"pooled:{role}",
        "role": role,
        "predictor": baseline.predictor,
        "trained_at": baseline.trained_at,
    }
    statistics = from_batch(on_grid(baseline.predict(part)), part.labels)
    return BaselineRecord.model_validate(place | _measured(statistics))


def _measured(statistics: CalibrationStatistics) -> dict[str, object]:
    """Return the metrics, rounded to three places: more would tell the training labels."""
    measured = {}
    for key in SHOWN:
        metric = METRICS[key].measure(statistics)
        if metric is not None:
            measured[key] = metric
    intervals = {
        key: _rounded(metric.interval)
        for key, metric in measured.items()
        if metric.interval is not None
    }
    values = {key: _rounded(metric.value) for key, metric in measured.items()}
    return {"n": int(statistics.count), "intervals": intervals, **values}


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_rounded, value))
    return value if value is None else round(float(value), 3)
