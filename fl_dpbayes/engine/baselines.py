"""What simpler predictors reach on a simulation's test records, without privacy.

The page shows them beside the run. They read the records of every virtual site in this process,
which a run of real hospitals cannot.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_dpbayes.calibration import METRICS, Sums
from fl_dpbayes.config import Role, Scenario, read_site_file
from fl_dpbayes.data import BASELINES, Site, SiteSplit, load_site
from fl_dpbayes.engine.inline_engine import LOG_FILE, logs_in
from fl_dpbayes.files import RunStore
from fl_dpbayes.outcomes import Baseline, Outcome, outcome_of
from fl_dpbayes.report import BaselineRecord, Baselines

SHOWN = ("accuracy", "nll", "auroc", "rms_debiased")


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
        # What a site says of its records is in the log of all sites, as when it is asked by a run.
        with logs_in(run_folder / LOG_FILE):
            sites = [load_site(read_site_file(path)) for path in site_files]
        result = measured_baselines(sites)
    with RunStore.open(run_folder) as store:
        store.append(**{BASELINES: result.model_dump(mode="json", exclude_unset=True)})


def measured_baselines(sites: Sequence[Site]) -> Baselines:
    """Fit each baseline to virtual sites' training records, and measure it on test records.

    Args:
        sites: All sites of a run.

    Returns:
        A row for each baseline and role, and why a baseline is missing.
    """
    outcome = outcome_of(sites[0].task.outcome)
    baselines = outcome.baselines(
        {site.name: site.train for site in sites if site.train is not None},
        all(site.test.published is not None for site in sites),
    )
    parts_by_role: dict[Role, list[SiteSplit]] = {}
    for site in sites:
        parts_by_role.setdefault(site.role, []).append(site.test)
    roles = {role: _joined(parts) for role, parts in parts_by_role.items()}
    rows = [
        _row(outcome, baseline, role, part)
        for baseline in baselines.fitted
        for role, part in roles.items()
        if len(part.labels)
    ]
    return Baselines(rows=tuple(rows), missing=baselines.missing)


def _joined(parts: Sequence[SiteSplit]) -> SiteSplit:
    """Join all that a baseline looks at."""
    published = [part.published for part in parts if part.published is not None]
    return replace(
        parts[0],
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        published=np.concatenate(published or [np.zeros(0)]),
    )


def _row(
    outcome: Outcome[Any, Any], baseline: Baseline, role: Role, part: SiteSplit
) -> BaselineRecord:
    place = {
        "site": f"pooled:{role}",
        "role": role,
        "predictor": baseline.predictor,
        "trained_at": baseline.trained_at,
    }
    sums = outcome.count(baseline.predict(part), part.labels, slice(None), None)
    return BaselineRecord.model_validate(place | _measured(sums))


def _measured(sums: Sums) -> dict[str, object]:
    """Return the metrics, rounded to three places: more would tell the training labels."""
    measured = {}
    for key in SHOWN:
        metric = METRICS[key].measure(sums)
        if metric is not None:
            measured[key] = metric
    intervals = {
        key: _rounded(metric.interval)
        for key, metric in measured.items()
        if metric.interval is not None
    }
    values = {key: _rounded(metric.value) for key, metric in measured.items()}
    return {"n": int(sums.count), "intervals": intervals, **values}


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_rounded, value))
    return value if value is None else round(float(value), 3)
