"""A finished run for someone who writes Python: tables, figures, page, posterior, predictions."""

import html
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
from matplotlib import pyplot
from matplotlib.axes import Axes
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fl_dpbayes.api.labelled_records import Loadable, feature_array
from fl_dpbayes.api.rows import Rows
from fl_dpbayes.calibration import CalibrationRecord
from fl_dpbayes.config import (
    PREDICTORS,
    Scenario,
    counted,
    first_names,
    load_scenario,
    near_hint,
    site_name,
)
from fl_dpbayes.data import SCENARIO_FILE
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.models import provided
from fl_dpbayes.posterior import POSTERIOR_FILE, load_posterior
from fl_dpbayes.predict.new_records import NewData
from fl_dpbayes.predict.run_posterior import RunPosterior
from fl_dpbayes.predict.stored_posterior import predicted_table
from fl_dpbayes.report import (
    CALIBRATION_COLUMNS,
    PAGE,
    PrivacyRecord,
    Summary,
    calibration_csv_row,
    headline_predictor,
    read_summary,
    write_report,
)
from fl_dpbayes.report.calibration_figures import draw_bins

# Of a record of privacy.
NOT_IN_TABLE = ("history", "temperature_range")


class Run:
    """A finished run, read from its directory.

    It is a classifier as scikit-learn has them: `classes_`, `predict_proba`, `predict`, so that
    `CalibrationDisplay.from_estimator(run, X, y)` works. A notebook shows its page.

    Attributes:
        folder: The run's folder.
        summary: What `summary.json` holds.
    """

    _estimator_type = "classifier"

    def __init__(
        self, folder: Path, module: nn.Module | None = None, allowed_code: Collection[str] = ()
    ) -> None:
        self.folder = folder
        self._module = module
        self._allowed_code = allowed_code
        self.summary: Summary = read_summary(folder)

    @property
    def calibration(self) -> Rows[CalibrationRecord]:
        """Calibration by site and predictor; `to_frame()` has the columns of `calibration.csv`."""
        return Rows(self.summary.calibration, CALIBRATION_COLUMNS, cells=calibration_csv_row)

    @property
    def privacy(self) -> Rows[PrivacyRecord]:
        """What the run cost each site: epsilon, delta, budget, steps, temperature."""
        columns = tuple(name for name in PrivacyRecord.model_fields if name not in NOT_IN_TABLE)
        return Rows(self.summary.privacy, columns, cells=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the run warns of."""
        return self.summary.warnings

    @cached_property
    def scenario(self) -> Scenario:
        """All settings of the run."""
        return load_scenario(str(self.folder / SCENARIO_FILE))

    @cached_property
    def classes_(self) -> npt.NDArray:
        """The classes as the records write them, (classes,): words, or whole numbers."""
        source = self.scenario.data.source
        names = source.names_of_classes or range(source.task.outcome.outputs)
        are_whole = all(str(name).lstrip("-").isdigit() for name in names)
        return np.array([int(name) for name in names] if are_whole else list(names))

    @cached_property
    def posterior(self) -> RunPosterior:
        """The posterior samples; `to_arviz()` gives their chains."""
        with self._module_at_hand():
            stored = load_posterior(self.folder / POSTERIOR_FILE, self._allowed_code)
        sites = tuple(name for name, spec in self.scenario.sites.items() if spec.role == "train")
        return RunPosterior(stored, self.folder, self.scenario.aggregation, sites)

    def predict_proba(self, new: NewData | Loadable) -> "Probabilities":
        """Predict new records with the posterior.

        With coupling "constant" the samples are averaged as in DP-SGD: how far they spread
        (`epistemic_uncertainty`) follows the privacy noise and is not the posterior's uncertainty.

        Args:
            new: A DataFrame with the columns that the run's own records had, an array (N, ...) of
                their shape, a data set of (features, label), or the path of a file, as `fl-dpbayes
                predict` takes it.

        Returns:
            Class probabilities and their uncertainty: one row per record, in order, with the
            frame's index.

        Raises:
            UserError: If the records do not fit the run.

        Example:
            >>> p = run.predict_proba(frame)  # doctest: +SKIP
            >>> p["epistemic_uncertainty"], p[:, 1]  # doctest: +SKIP
        """
        data = feature_array(new) if isinstance(new, Dataset | DataLoader) else new
        with self._module_at_hand():
            table = predicted_table(
                run_dir=self.folder,
                data=data,
                classes=pandas.Index(self.classes_.tolist()),
                allowed_code=self._allowed_code,
            )
        if isinstance(new, pandas.DataFrame):
            table.index = new.index
        return Probabilities(table)

    def predict(self, new: NewData | Loadable) -> npt.NDArray:
        """Return the most probable class of each new record, (N,)."""
        return self.classes_[self.predict_proba(new)[:, : len(self.classes_)].argmax(axis=1)]

    def score(self, new: NewData | Loadable, labels: npt.ArrayLike) -> float:
        """Return the share of new records whose most probable class is right, as scikit-learn does.

        Args:
            new: N records, as of `predict_proba`.
            labels: Their classes, as `classes_` writes them, (N,).

        Returns:
            The accuracy, in [0, 1].

        Raises:
            UserError: If the records do not fit the run, or the labels do not fit the records.
        """
        classes = np.asarray(labels)
        unknown = set(classes.ravel().tolist()) - set(self.classes_.tolist())
        if unknown:
            raise UserError(
                f"labels hold {next(iter(unknown))!r}: the run's classes are "
                f"{', '.join(map(str, self.classes_))}"
            )
        predicted = self.predict(new)
        if classes.shape != predicted.shape:
            raise UserError(
                f"labels have shape {classes.shape}: give one for each of the "
                f"{len(predicted)} records"
            )
        return float((predicted == classes).mean())

    def fit(self, *_: Any) -> "Run":
        """Return the run, which is fitted, as scikit-learn's FrozenEstimator does."""
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(
            "classifier",
            TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            requires_fit=False,
        )

    def plot_reliability(
        self, site: str, predictor: str | None = None, ax: Axes | None = None
    ) -> Axes:
        """Draw how well predictions are calibrated at a site.

        Observed against predicted risk, or accuracy against confidence where classes are many. The
        band is where a calibrated model would lie in 95 of 100 cases.

        Args:
            site: A site's name, or `pooled:train`, `pooled:held_out`, `pooled:shifted`.
            predictor: Such as "posterior" or "last"; None: the one that the page speaks of.
            ax: Where to draw; None: axes of a new figure.

        Returns:
            The axes.

        Raises:
            UserError: If the run has no such site or predictor.
        """
        if not site.startswith("pooled:"):
            site = site_name(site)
        rows = {row.predictor: row for row in self.summary.reliability if row.site == site}
        if not rows:
            sites = dict.fromkeys(row.site for row in self.summary.reliability)
            raise UserError(
                f"site is {site!r}: {near_hint(site, sites)}choose among {first_names([*sites])}"
            )
        if predictor is None:
            predictor = headline_predictor(self.summary)
        if predictor not in rows:
            raise UserError(f"predictor is {predictor!r}: choose among {', '.join(rows)}")
        row = rows[predictor]
        if ax is None:
            _, ax = pyplot.subplots(layout="constrained")
        draw_bins(ax, row, 4.2)
        if row.risk:
            ax.set(xlabel=f"predicted risk of {self.classes_[-1]}", ylabel="observed share")
        else:
            ax.set(xlabel="confidence", ylabel="accuracy")
        records = sum(part.n for part in row.bins)
        ax.set_title(f"{site}, {PREDICTORS.get(predictor, predictor)}, n = {records}")
        return ax

    def report(self, path: Path | str | None = None) -> Path:
        """Write the run's page anew.

        Args:
            path: Where to write a copy of it; None: the page of the run's folder alone.

        Returns:
            Where the copy is, or the page.

        Raises:
            UserError: If `path` holds something else than such a page.
        """
        page = write_report(self.folder)
        if path is None:
            return page
        copy = Path(path)
        content = page.read_text(encoding="utf-8")
        if copy.exists() and not _is_page(copy, content):
            raise UserError(
                f"{copy} exists and is no page of a run: give another name, nothing is overwritten"
            )
        write_atomically(copy, content)
        return copy

    def __repr__(self) -> str:
        sites = counted(len(self.summary.sites), "site")
        return (
            f"Run of {self.summary.scenario!r} in {self.folder}: {sites}, see .calibration, "
            ".privacy, .report(path)"
        )

    def _repr_html_(self) -> str:
        page = self.folder / PAGE
        if not page.is_file():
            page = write_report(self.folder)
        # In a frame of its own, as the page's style then stays in it, and nothing in it can run.
        content = html.escape(page.read_text(encoding="utf-8"))
        return (
            f'<iframe sandbox srcdoc="{content}" style="width:100%;height:40em;border:1px solid '
            '#ccc"></iframe>'
        )

    def _module_at_hand(self) -> AbstractContextManager[object]:
        return nullcontext() if self._module is None else provided(self._module)


class Probabilities(pandas.DataFrame):
    """Class probabilities of records, one row for each, with their uncertainty.

    One column per class, by its name, then `total_uncertainty` and `epistemic_uncertainty` in nats.
    `p[:, 1]`, as arrays are read, is the column of the second class as an array: that is how
    scikit-learn reads the answer of `predict_proba`.
    """

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple) and key and isinstance(key[0], slice):
            return self.iloc[key].to_numpy()
        return super().__getitem__(key)


def load_run(
    directory: Path | str, model: nn.Module | None = None, allowed_code: Collection[str] = ()
) -> Run:
    """Read a finished run back from its directory.

    Args:
        directory: The run's folder.
        model: The module object that the run was made with, if it was; its values do not matter,
            but those that were not trained.
        allowed_code: Factories that the run may import to predict, as `package.module:function`; by
            itself none is imported.

    Returns:
        The run.

    Raises:
        UserError: If the folder is no finished run, a file in it is damaged, or the model is none.
    """
    if not isinstance(model, nn.Module | None):
        raise UserError(f"model is {str(model)[:60]}: give a torch module that was built")
    return Run(Path(directory), model, allowed_code)


def _is_page(path: Path, content: str) -> bool:
    """Tell whether a file begins as a run's page does."""
    return path.is_file() and path.read_bytes()[:60] == content.encode()[:60]
