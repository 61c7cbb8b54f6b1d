"""What simpler predictors reach on a simulation's test records, without privacy: the page shows them beside the run.

They read the records of every virtual site in this process, which a run of real hospitals cannot.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration import METRICS, CalibrationStatistics, from_batch, measure, on_grid
from fl_dpbayes.config import Role, Scenario, read_site_file
from fl_dpbayes.data import BASELINES_FILE, Site, SiteSplit, load_site
from fl_dpbayes.files import write_atomically
from fl_dpbayes.report import BaselineRecord, Baselines

SHOWN = ("accuracy", "nll", "auroc", "rms_debiased")
# A regression on more numbers than this would take longer than the run beside it.
MOST_NUMBERS = 20_000_000
Predict = Callable[[SiteSplit], npt.NDArray[np.float64]]


def write_baselines(scenario: Scenario, site_files: Sequence[Path], run_folder: Path) -> None:
    """Measure the baselines on the test records of each role, and write them for the run's summary.

    `site_files`: those of all virtual sites. Raises UserError if a site cannot be loaded or the
    file not be written.
    """
    if not scenario.evaluation.baselines:
        why = (
            "it would read the training records without privacy, which evaluation.baselines "
            "does not allow"
        )
        found = Baselines(missing={"all": why})
    elif scenario.evaluation.release != "public":
        found = Baselines(
            missing={"all": "the sites' test records are not declared public (evaluation.release)"}
        )
    else:
        found = baselines([load_site(read_site_file(path)) for path in site_files])
    write_atomically(run_folder / BASELINES_FILE, found.model_dump_json(exclude_unset=True) + "\n")


def baselines(sites: Sequence[Site]) -> Baselines:
    """Fit each baseline to the training records of virtual sites, and measure it on the test records of each role.

    `majority`: the class shares of all training records for everybody. `site_only` and `central`:
    scikit-learn's logistic regression with an L2 penalty (C = 1) on the features of one training
    site, and of all of them. `published`: the score that came with the records.
    """
    classes, missing = sites[0].task.classes, {}
    trained = {
        site.name: (site.train.features, site.train.labels)
        for site in sites
        if site.train is not None
    }
    features, labels = (np.concatenate(arrays) for arrays in zip(*trained.values(), strict=True))
    shares = np.bincount(labels, minlength=classes) / len(labels)
    found: list[tuple[str, str, Predict]] = [
        ("majority", "", lambda part: np.tile(shares, (len(part.labels), 1)))
    ]
    if features.ndim != 2:
        missing["site_only"] = missing["central"] = "the features are no vectors of numbers"
    elif features.size * classes > MOST_NUMBERS:
        missing["site_only"] = missing["central"] = (
            "there are too many records and features to fit it beside a run"
        )
    else:
        found += [("site_only", name, _regression(*own, classes)) for name, own in trained.items()]
        found.append(("central", "", _regression(features, labels, classes)))
    if all(site.test.published is not None for site in sites):
        found.append(("published", "", _published))
    else:
        missing["published"] = "the data set has none"
    roles = {
        site.role: _joined([one.test for one in sites if one.role == site.role]) for site in sites
    }
    rows = [row for fitted in found for row in _rows(roles, *fitted)]
    return Baselines(rows=tuple(rows), missing=missing)


def _regression(features: npt.NDArray, labels: npt.NDArray, classes: int) -> Predict:
    present = np.unique(labels)
    # A second to import, and not every run has baselines.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

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
    features, labels = (
        np.concatenate([getattr(one, name) for one in parts]) for name in ("features", "labels")
    )
    return replace(
        parts[0],
        features=features,
        labels=labels,
        published=np.concatenate(published or [np.zeros(0)]),
    )


def _rows(
    roles: Mapping[Role, SiteSplit], predictor: str, own: str, predict: Predict
) -> Iterator[BaselineRecord]:
    for role, part in roles.items():
        if len(part.labels):
            key = {
                "site": f"pooled:{role}",
                "role": role,
                "predictor": predictor,
                "trained_at": own,
            }
            yield BaselineRecord.model_validate(
                key | _measured(from_batch(on_grid(predict(part)), part.labels))
            )


def _rounded(value: Any) -> Any:
    """Round every number to three places: more would tell the training labels behind it."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_rounded, value))
    return value if value is None else round(float(value), 3)


def _measured(sums: CalibrationStatistics) -> dict[str, object]:
    found = {key: value for key in SHOWN if (value := measure(METRICS[key], sums)) is not None}
    intervals = {key: value.interval for key, value in found.items() if value.interval is not None}
    return {"n": int(sums.count)} | _rounded(
        {"intervals": intervals} | {key: one.value for key, one in found.items()}
    )
