"""Calibration at every site from additive statistics: per site, and pooled per role."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import REPORT_BINS, coarsen
from fl_dpbayes.calibration.federation.counts import (
    Statistics,
    check_counts,
    check_noise,
    decisive_sites,
    dominating_site,
    record_count,
)
from fl_dpbayes.calibration.federation.rows import SHIFT_PREDICTOR, conformal_rows, mean_rows, shift_detection_rows
from fl_dpbayes.calibration.federation.subgroups import SubgroupStatistics, read_subgroups, subgroup_sets
from fl_dpbayes.calibration.metrics.errors import reliability_bins
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, merge_noised, noised_from_arrays
from fl_dpbayes.calibration.statistics import CalibrationStatistics, empty, from_arrays, merge, to_arrays
from fl_dpbayes.calibration.summarise import summarise, summarise_noised
from fl_dpbayes.config.errors import RunWarning, warning
from fl_dpbayes.config.names import Role
from fl_dpbayes.privacy.check_statement import checked_statement
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.protocol.arrays import prefixed, without_prefix
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.evaluate import (
    MAX_GROUPS,
    PRIOR_CORRECTED,
    RECALIBRATED,
    EvaluateReply,
    EvaluateRequest,
    most_groups,
    subgroup_prefix,
)
from fl_dpbayes.protocol.train import PrivacyStatement

ROLES: tuple[Role, ...] = ("held_out", "shifted", "train")
# One diagram for each site: more would be read by nobody, and make the largest part of a summary.
MAX_RELIABILITY_SITES = 24
HEADLINE_PREDICTORS = ("posterior", "last")
# What Flower's own result shows; intervals and all else are in `summary.json`.
METRICS = ("n", "accuracy", "nll", "brier", "ece", "rms_debiased")


@dataclass(frozen=True)
class SiteStatistics:
    """What one site sent about one predictor, exact or noised."""

    card: SiteCard
    predictor: str
    statistics: Statistics


class Evaluation:
    """Collects the sites' statistics and summarises them."""

    def __init__(self, classes: int, roles_sharing_records: Collection[Role] = (), seed: int = 0) -> None:
        """Collect for so many classes."""
        self.classes, self._unpooled, self._seed = classes, roles_sharing_records, seed
        self.parts: list[SiteStatistics] = []
        self.subgroups: list[SubgroupStatistics] = []
        self._left_out: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        self.statements: dict[str, PrivacyStatement] = {}
        tables = to_arrays(empty(classes))
        self._exact_shapes = {name: array.shape for name, array in tables.items()}
        self._exact_bytes = sum(array.nbytes for array in tables.values())

    def add(
        self,
        card: SiteCard,
        request: EvaluateRequest,
        record: EvaluateReply,
        read: Callable[[Mapping[str, tuple[int, ...]]], dict[str, npt.NDArray]],
    ) -> None:
        """Check and keep a site's statistics for every predictor that was asked for.

        `read` takes names and shapes, and returns the arrays that came beside the record, float64, or raises.

        Raises ValueError if arrays are missing, of another shape, contradict each other, or count more records
        than the site's size allows; nothing is then kept.
        """
        noised = record.noise_std is not None
        if len(record.groups) > most_groups(len(request.measured) * self._exact_bytes):
            raise ValueError(f"it measured {len(record.groups)} subgroups, whose tables are too large for a reply")
        if record.noise_std is not None:
            check_noise(record.noise_std, request.noise_multiplier or 0.0)
        privacy = _checked_cost(card, request, record.privacy) if record.privacy is not None else None
        one = {"noised": (REPORT_BINS, SENT_COLUMNS)} if noised else self._exact_shapes
        shapes: dict[str, tuple[int, ...]] = {}
        prefixes = [subgroup_prefix(number) + "/" for number in range(len(record.groups))]
        for prefix in ("", *prefixes):
            for predictor in request.measured:
                shapes |= prefixed(f"{prefix}{predictor}", one)
        arrays = read(shapes)
        parts = []
        # Recalibrated and prior-corrected predictors are the posterior, mapped.
        counts = {name: len(weights) for name, weights in request.predictors.items()}
        self._samples = counts | dict.fromkeys((RECALIBRATED, PRIOR_CORRECTED), counts.get("posterior", 0))
        for predictor in request.measured:
            tables = without_prefix(predictor, arrays)
            statistics: Statistics = (
                from_arrays(tables, self.classes)
                if record.noise_std is None
                else noised_from_arrays(tables, REPORT_BINS, record.noise_std)
            )
            parts.append(SiteStatistics(card, predictor, statistics))
        check_counts(card, [part.statistics for part in parts])
        whole = {p.predictor: p.statistics for p in parts if isinstance(p.statistics, CalibrationStatistics)}
        subgroups = read_subgroups(card, record.groups, arrays, whole)
        self.parts += parts
        self.subgroups += subgroups
        if record.groups_left_out:
            self._left_out[card.name] = record.groups_left_out
        if privacy is not None:
            self.statements[card.name] = privacy

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Summarise pooled roles first, then the means over the sites of each, then sites; all have answered.

        Returns the summary's `calibration` rows, and its `reliability` rows (exact sums only): pooled roles,
        then each site's posterior, or last iterate where there is none, in a federation of at most 24 measured
        sites.
        """
        headline = self._headline()
        few = len({part.card.name for part in self.parts}) <= MAX_RELIABILITY_SITES
        shown = [*self._pooled(), *(place for place in self._by_site() if few and place[2] == headline)]
        reliability = [
            self._key(name, role, predictor) | {"bins": [row.model_dump() for row in reliability_bins(statistics)]}
            for name, role, predictor, statistics in shown
            if isinstance(statistics, CalibrationStatistics)
        ]
        sites = [self._row(self._key(*place), statistics) for *place, statistics in self._by_site()]
        return [*self._pooled_rows, *mean_rows(sites), *sites], reliability

    def pooled_metrics(self) -> dict[str, int | float]:
        """Return `<role>/<predictor>/<metric>` of the pooled roles, METRICS as far as they are defined."""
        return {
            f"{row['role']}/{row['predictor']}/{name}": row[name]
            for row in self._pooled_rows
            for name in METRICS
            if row[name] is not None
        }

    @cached_property
    def _pooled_rows(self) -> list[dict[str, Any]]:
        return [self._row(self._key(*place), statistics) for *place, statistics in self._pooled()]

    def subgroup_rows(self) -> list[dict[str, Any]]:
        """Return the summary's `subgroups` rows, those of pooled roles first; sums that left exactly only."""
        pooled = [role for role in ROLES if role not in self._unpooled]
        return [
            self._row(self._key(name, role, predictor) | {"attribute": group[0], "value": group[1]}, statistics)
            for name, role, predictor, group, statistics in subgroup_sets(self.subgroups, pooled)
        ]

    def shift_detection_rows(self) -> list[dict[str, Any]]:
        """Return the summary's `shift_detection` rows: pooled roles first, then sites."""
        places = [
            (name, role, statistics if isinstance(statistics, CalibrationStatistics) else None)
            for name, role, predictor, statistics in [*self._pooled(), *self._by_site()]
            if predictor == SHIFT_PREDICTOR
        ]
        trained = [found for name, role, found in places if role == "train" and name != "pooled:train" and found]
        return shift_detection_rows(
            reduce(merge, trained) if trained else None,
            [(name, found) for name, role, found in places if role != "train"],
            self._samples.get(SHIFT_PREDICTOR, 0),
        )

    def _key(self, name: str, role: str, predictor: str) -> dict[str, Any]:
        return {"site": name, "role": role, "predictor": predictor, "samples": self._samples[predictor]}

    def _row(self, key: dict[str, Any], statistics: Statistics) -> dict[str, Any]:
        generator = np.random.default_rng(self._seed)
        if isinstance(statistics, NoisedTable):
            found = summarise_noised(statistics, generator)
        else:
            found = summarise(statistics, generator)
        row = {**key, **found.as_row()}
        if key["predictor"] in (RECALIBRATED, PRIOR_CORRECTED) or key["samples"] == 1:
            # One sample has nothing to disagree with, which is not agreement; and a map acts on averaged
            # probabilities, which no longer tell the two uncertainties apart.
            row |= {"epistemic": None, "aleatoric": None}
        return row

    def conformal(self) -> list[dict[str, Any]]:
        """Measure prediction sets at the sites that did not train; the summary's `conformal` rows."""
        return conformal_rows([*self._pooled(), *self._by_site()])

    def warnings(self) -> list[RunWarning]:
        """Name the sites that hold most of what is pooled or decide it, or that left subgroups out."""
        found = list[RunWarning]()
        for role in ROLES:
            if role in self._unpooled and any(part.card.role == role for part in self.parts):
                found.append(warning("same-records", role=role))
                continue
            counts: dict[str, float] = {}
            for part in self.parts:
                if part.card.role == role:
                    count = record_count(part.statistics)
                    counts[part.card.name] = max(count, counts.get(part.card.name, count))
            if counts and (dominating := dominating_site(role, counts)):
                found.append(dominating)
            found += decisive_sites(role, self._first_read(role))
        for name, count in self._left_out.items():
            found.append(warning("subgroups-left-out", name, left_out=count, most=MAX_GROUPS))
        return found

    def _first_read(self, role: Role) -> dict[str, NoisedTable]:
        """Return the sites' tables of the predictor that is read first."""
        headline = self._headline()
        return {
            part.card.name: _coarse(part.statistics)
            for part in self.parts
            if (part.card.role, part.predictor) == (role, headline)
        }

    def _headline(self) -> str:
        return next((name for name in HEADLINE_PREDICTORS if name in self._samples), "")

    def _by_site(self) -> list[tuple[str, Role, str, Statistics]]:
        return [(part.card.name, part.card.role, part.predictor, part.statistics) for part in self.parts]

    def _pooled(self) -> list[tuple[str, Role, str, Statistics]]:
        pooled = []
        for role in (role for role in ROLES if role not in self._unpooled):
            measured = {part.card.name for part in self.parts if part.card.role == role}
            for predictor in dict.fromkeys(part.predictor for part in self.parts):
                members = [
                    part.statistics for part in self.parts if (part.card.role, part.predictor) == (role, predictor)
                ]
                # Over some of the sites only it could not be held against the other predictors.
                if members and len(members) == len(measured):
                    pooled.append((f"pooled:{role}", role, predictor, reduce(_merge, members)))
        return pooled


def _checked_cost(card: SiteCard, request: EvaluateRequest, statement: PrivacyStatement) -> PrivacyStatement:
    if statement.units != card.units:
        raise ValueError("its privacy statement does not fit its card")
    own = (GaussianEvent(request.noise_multiplier or 0.0, 1.0, len(request.measured)),)
    return checked_statement(statement, own, own, None, request.delta)


def _merge(first: Statistics, second: Statistics) -> Statistics:
    if isinstance(first, CalibrationStatistics) and isinstance(second, CalibrationStatistics):
        return merge(first, second)
    return merge_noised(_coarse(first), _coarse(second))


def _coarse(statistics: Statistics) -> NoisedTable:
    """Reduce exact sums to what a noised table holds, with noise 0, so that the two kinds of sites can be pooled."""
    if isinstance(statistics, NoisedTable):
        return statistics
    return NoisedTable(coarsen(statistics.top_label, REPORT_BINS)[:, :SENT_COLUMNS], 0.0)
