"""Calibration at every site from additive statistics: per site, and pooled per role."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import REPORT_BINS
from fl_dpbayes.calibration.federation.counts import (
    Statistics,
    Total,
    check_counts,
    check_noise,
    decisive_means,
    decisive_sites,
    dominating_site,
    empty_site,
    labels_of,
    record_count,
)
from fl_dpbayes.calibration.federation.rows import (
    SHIFT_PREDICTOR,
    conformal_rows,
    mean_rows,
    shift_detection_rows,
)
from fl_dpbayes.calibration.federation.subgroups import (
    Place,
    coarse,
    pooled,
    read_subgroups,
    subgroup_sets,
)
from fl_dpbayes.calibration.metrics.errors import reliability_bins
from fl_dpbayes.calibration.metrics.ranking import roc_points
from fl_dpbayes.calibration.prior_shift import prevalence
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable
from fl_dpbayes.calibration.statistics import (
    CalibrationStatistics,
    array_shapes,
    from_arrays,
    merge,
    sparse,
)
from fl_dpbayes.calibration.summarise import summarise, summarise_noised
from fl_dpbayes.config import PREDICTORS, Adjacency, Role, RunWarning, warning
from fl_dpbayes.privacy import GaussianEvent, checked_statement
from fl_dpbayes.protocol import (
    MAPPED,
    MAX_GROUPS,
    EvaluateReply,
    EvaluateRequest,
    PrivacyStatement,
    SiteCard,
    most_groups,
    prefixed,
    subgroup_prefix,
    without_prefix,
)

ROLES: tuple[Role, ...] = ("held_out", "shifted", "train")
POOLED = {f"pooled:{role}" for role in ROLES}
# One diagram for each site: more would be read by nobody, and make the largest part of a summary.
MAX_RELIABILITY_SITES = 24
# A site's decision curve is two thirds of its row, and of that of each of its subgroups.
MAX_CURVE_SITES = 100
HEADLINE_PREDICTORS = ("posterior", "last")
# What Flower's own result shows; intervals and all else are in `summary.json`.
METRICS = ("n", "accuracy", "nll", "brier", "ece", "rms_debiased")


class Evaluation:
    """Collects the sites' statistics and summarises them."""

    def __init__(
        self,
        classes: int,
        roles_sharing_records: Collection[Role] = (),
        seed: int = 0,
        max_records_per_unit: int = 1,
        adjacency: Adjacency = "add_or_remove_one",
    ) -> None:
        """Collect for so many classes, and noised tables of at most so many records of one unit."""
        self._adjacency = adjacency
        self._most_records = max_records_per_unit
        self.classes, self._seed, self._unpooled = classes, seed, roles_sharing_records
        self._pooled_roles = [role for role in ROLES if role not in roles_sharing_records]
        self.places, self._subgroups = list[Place](), list[Place]()
        self._left_out, self._samples = dict[str, int](), dict[str, int]()
        self.statements: dict[str, PrivacyStatement] = {}
        self._shares: dict[str, tuple[float, ...]] = {}
        self._exact_shapes = array_shapes(classes)
        self._exact_bytes = 8 * sum(map(math.prod, self._exact_shapes.values()))

    def add(
        self,
        card: SiteCard,
        request: EvaluateRequest,
        record: EvaluateReply,
        read: Callable[[Mapping[str, tuple[int, ...]]], dict[str, npt.NDArray]],
    ) -> None:
        """Check and keep a site's statistics for every predictor that was asked for.

        `read` takes names and shapes, and returns the arrays that came beside the record, float64,
        or raises. Raises ValueError if sums contradict each other or count more records than the
        site's size allows; none is then kept.
        """
        if len(record.groups) > most_groups(len(request.measured) * self._exact_bytes):
            raise ValueError(
                f"it measured {len(record.groups)} subgroups, whose tables are too "
                "large for a reply"
            )
        if record.release != card.evaluation_release:
            raise ValueError(
                f"its card says that results leave {card.evaluation_release!r}, they are {record.release!r}"
            )
        if record.noise_std is not None:
            check_noise(record.noise_std, request.noise_multiplier or 0.0, self._most_records)
        if record.privacy is not None and (
            record.privacy.units != card.units or record.privacy.adjacency != self._adjacency
        ):
            raise ValueError("its privacy statement does not fit its card or the plan")
        own = (GaussianEvent(request.noise_multiplier or 0.0, 1.0, len(request.measured)),)
        privacy = record.privacy and checked_statement(
            record.privacy, own, own, None, request.delta
        )
        one = (
            self._exact_shapes
            if record.noise_std is None
            else {"noised": (REPORT_BINS, SENT_COLUMNS)}
        )
        prefixes = ["", *(subgroup_prefix(number) + "/" for number in range(len(record.groups)))]
        shapes: dict[str, tuple[int, ...]] = {}
        for key in (
            f"{prefix}{predictor}" for prefix in prefixes for predictor in request.measured
        ):
            shapes |= prefixed(key, one)
        arrays = read(shapes)
        counts = {name: len(weights) for name, weights in request.predictors.items()}
        self._samples = counts | dict.fromkeys(MAPPED, counts.get("posterior", 0))
        measured: dict[str, Statistics] = {}
        for name in request.measured:
            sums, noise = without_prefix(name, arrays), record.noise_std
            measured[name] = (
                from_arrays(sums, self.classes)
                if noise is None
                else NoisedTable(sums["noised"], noise)
            )
        check_counts(card, measured.values())
        whole = {
            name: found
            for name, found in measured.items()
            if isinstance(found, CalibrationStatistics)
        }
        if len({labels_of(found) for found in whole.values()}) > 1:
            raise ValueError("it measured its predictors on different test records")
        self._subgroups += read_subgroups(card, record.groups, arrays, whole)
        self.places += [
            Place(
                card.name,
                card.role,
                name,
                sparse(one) if isinstance(one, CalibrationStatistics) else one,
            )
            for name, one in measured.items()
        ]
        first = measured[request.measured[0]]
        if isinstance(first, CalibrationStatistics) and first.count:
            self._shares[card.name] = tuple(map(float, prevalence(first)))
        if record.groups_left_out:
            self._left_out[card.name] = record.groups_left_out
        if privacy is not None:
            self.statements[card.name] = privacy

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Summarise pooled roles first, then the means over the sites of each, then sites.

        All have answered.

        Returns the summary's `calibration` rows, and its `reliability` rows (exact sums only):
        pooled roles, then each site's first read predictor where few sites were measured.
        """
        measured = len({place.site for place in self.places})
        few = self.places if measured <= MAX_RELIABILITY_SITES else []
        shown = [*self._pooled, *(place for place in few if place.predictor == self._headline)]
        reliability = [
            self._key(place)
            | {
                "risk": self.classes == 2,
                "roc": roc_points(statistics) if place.site.startswith("pooled:") else (),
            }
            | {"bins": [row.model_dump() for row in reliability_bins(statistics)]}
            for place in shown
            if (statistics := place.exact)
        ]
        sites = [self._row(place) for place in self.places]
        return [*self._pooled_rows, *mean_rows(sites), *sites], reliability

    def class_shares(self, site: str) -> tuple[float, ...] | None:
        """Return the share of each class among a site's test records.

        None where its sums are noised or absent.
        """
        return self._shares.get(site)

    def pooled_metrics(self) -> dict[str, int | float]:
        """Return `<role>/<predictor>/<metric>` of the pooled roles, METRICS as far as they are defined."""
        named = (
            (f"{row['role']}/{row['predictor']}", row, name)
            for row in self._pooled_rows
            for name in METRICS
        )
        return {f"{key}/{name}": row[name] for key, row, name in named if row[name] is not None}

    @cached_property
    def _pooled_rows(self) -> list[dict[str, Any]]:
        return list(map(self._row, self._pooled))

    def subgroup_rows(self) -> list[dict[str, Any]]:
        """Return the summary's `subgroups` rows, those of pooled roles first.

        Sums that left exactly only.
        """
        return list(map(self._row, subgroup_sets(self._subgroups, self._pooled_roles)))

    def shift_detection_rows(self) -> list[dict[str, Any]]:
        """Return the summary's `shift_detection` rows: pooled roles first, then sites."""
        measured = [
            place for place in (*self._pooled, *self.places) if place.predictor == SHIFT_PREDICTOR
        ]
        trainers = (
            place for place in measured if place.role == "train" and place.site != "pooled:train"
        )
        trained = (found for place in trainers if (found := place.exact))
        first = next(trained, None)
        others = ((place.site, place.exact) for place in measured if place.role != "train")
        reference = first and reduce(merge, trained, first)
        return shift_detection_rows(reference, others, self._samples.get(SHIFT_PREDICTOR, 0))

    def _key(self, place: Place) -> dict[str, Any]:
        key = {"site": place.site, "role": place.role, "predictor": place.predictor}
        group = (
            {}
            if place.group is None
            else dict(zip(("attribute", "value"), place.group, strict=True))
        )
        return key | {"samples": self._samples[place.predictor]} | group

    def _row(self, place: Place) -> dict[str, Any]:
        sums, draws = place.statistics, np.random.default_rng(self._seed)
        found = (
            summarise_noised(sums, draws)
            if isinstance(sums, NoisedTable)
            else summarise(sums, draws)
        )
        row = self._key(place) | found.as_row()
        if place.site not in POOLED and len({one.site for one in self.places}) > MAX_CURVE_SITES:
            row["net_benefit"] = None
        if row["predictor"] in MAPPED or row["samples"] == 1:
            # One sample has nothing to disagree with, which is not agreement; and a map acts on
            # averaged probabilities, which no longer tell the two uncertainties apart.
            row |= {"epistemic": None, "aleatoric": None}
        return row

    def conformal(self) -> list[dict[str, Any]]:
        """Measure prediction sets at the sites that did not train.

        The summary's `conformal` rows.
        """
        ordered = sorted(
            [*self._pooled, *self.places], key=lambda place: place.site != "pooled:train"
        )
        return conformal_rows((*place[:3], place.statistics) for place in ordered)

    def warnings(self) -> list[RunWarning]:
        """Name the sites that hold most of what is pooled or decide it, or that left subgroups out."""
        found = list[RunWarning]()
        for role in ROLES:
            members = [place for place in self.places if place.role == role]
            if role in self._unpooled and members:
                found.append(warning("same-records", role=role))
                continue
            counts: dict[str, float] = {}
            for place in members:
                counts[place.site] = max(
                    record_count(place.statistics), counts.get(place.site, -math.inf)
                )
            if counts and (dominating := dominating_site(role, counts)):
                found.append(dominating)
            read = {
                place.site: place.statistics
                for place in members
                if place.predictor == self._headline
            }
            empty = [said for said in map(empty_site, read, read.values()) if said is not None]
            found += empty
            without = {
                said.site for said in empty if isinstance(read[said.site], CalibrationStatistics)
            }
            first_read = {
                site: coarse(statistics) for site, statistics in read.items() if site not in without
            }
            decisive = decisive_sites(role, first_read)
            named = {said.site for said in decisive}
            found += decisive
            found += [said for said in self._further(role) if said.site not in named]
        missing = self._left_out.items()
        return found + [
            warning("subgroups-left-out", name, left_out=count, most=MAX_GROUPS)
            for name, count in missing
        ]

    def _further(self, role: Role) -> Iterator[RunWarning]:
        """Name the sites that decide a pooled mean which is not read first: of exact sums, each site once."""
        named = set[str]()
        for predictor in dict.fromkeys(place.predictor for place in self.places):
            exact = {
                place.site: sums
                for place in self.places
                if place[1:3] == (role, predictor) and (sums := place.exact)
            }
            means = {
                "accuracy": {
                    site: Total(sums.count, sums.correct, sums.correct)
                    for site, sums in exact.items()
                },
                "negative log-likelihood": {
                    site: Total(sums.count, sums.nll, sums.nll_squared)
                    for site, sums in exact.items()
                },
            }
            for metric, totals in means.items():
                said = decisive_means(role, f"{metric} of the {PREDICTORS[predictor]}", totals)
                if said is not None and said.site not in named:
                    named.add(said.site)
                    yield said

    @property
    def _headline(self) -> str:
        return next((name for name in HEADLINE_PREDICTORS if name in self._samples), "")

    @cached_property
    def _pooled(self) -> list[Place]:
        found = []
        for role in self._pooled_roles:
            sites = {place.site for place in self.places if place.role == role}
            for predictor in dict.fromkeys(place.predictor for place in self.places):
                members = [place for place in self.places if place[1:3] == (role, predictor)]
                # Over some of the sites only it could not be held against the other predictors.
                if members and len(members) == len(sites):
                    found.append(pooled(members))
        return found
