"""Calibration at every site from additive statistics: per site, and pooled per role."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.federation.counts import (
    Statistics,
    check_counts,
    check_noise,
    decisive_means,
    decisive_sites,
    dominating_site,
    empty_site,
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
    pooled,
    read_subgroups,
    subgroup_sets,
)
from fl_dpbayes.calibration.metrics.errors import reliability_bins
from fl_dpbayes.calibration.metrics.ranking import roc_points
from fl_dpbayes.calibration.metrics.smooth_curve import smooth_curve
from fl_dpbayes.calibration.noised_counts import (
    NoisedCounts,
    largest_sensitivity,
    without_noise,
)
from fl_dpbayes.calibration.prior_shift import prevalence
from fl_dpbayes.calibration.records import (
    CalibrationRecord,
    CalibrationValues,
    ConformalRecord,
    ReliabilityRecord,
    ShiftDetectionRecord,
    SubgroupRecord,
)
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.summarise import summarise, summarise_noised
from fl_dpbayes.calibration.sums import Shapes, SumsForm, Total, sparse
from fl_dpbayes.calibration.verdict import MOST_SHOWN, recommended_predictor, telling_order
from fl_dpbayes.config import (
    MAX_GROUP_ATTRIBUTES,
    PREDICTORS,
    Adjacency,
    Role,
    RunWarning,
    warning,
)
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
# Where more sites were tested, only those have a diagram that a page shows first.
MAX_RELIABILITY_SITES = 24
POOLED = {f"pooled:{role}" for role in ROLES}
# A site's decision curve is two thirds of its row, and of that of each of its subgroups.
MAX_CURVE_SITES = 100
# What Flower's own result shows; intervals and all else are in `summary.json`.
FLOWER_METRICS = ("n", "accuracy", "nll", "brier", "ece", "rms_debiased")

Arrays = dict[str, npt.NDArray]


class Evaluation:
    """Collects the sites' statistics and summarises them."""

    def __init__(
        self,
        form: SumsForm,
        roles_sharing_records: Collection[Role] = (),
        seed: int = 0,
        max_records_per_unit: int = 1,
        adjacency: Adjacency = "add_or_remove_one",
    ) -> None:
        """Begin with no site.

        Args:
            form: Of the sums that the sites send.
            roles_sharing_records: Roles whose sites hold the same records, so are not pooled.
            seed: Of the draws behind `ece_if_calibrated`.
            max_records_per_unit: The most records of one unit in a noised table.
            adjacency: That of the plan, which privacy statements must have.
        """
        self.places: list[Place] = []
        self.statements: dict[str, PrivacyStatement] = {}
        self._form = form
        self._roles_sharing_records = roles_sharing_records
        self._pooled_roles = [role for role in ROLES if role not in roles_sharing_records]
        self._seed = seed
        self._max_records_per_unit = max_records_per_unit
        self._adjacency = adjacency
        self._subgroups: list[Place] = []
        self._left_out: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        self._shares: dict[str, tuple[float, ...]] = {}

    def add(
        self,
        card: SiteCard,
        request: EvaluateRequest,
        reply: EvaluateReply,
        read: Callable[[Shapes], Arrays],
    ) -> None:
        """Check and keep a site's statistics for every predictor that was asked for.

        Args:
            card: Who replies.
            request: What was asked.
            reply: The site's record.
            read: Takes names and shapes and returns the float64 arrays beside the record, or
                raises.

        Raises:
            ValueError: If sums contradict each other or count more records than the site's size
                allows; none is then kept.
        """
        self._check_release(card, request, reply)
        privacy = self._checked_privacy(card, request, reply)
        arrays = read(self._shapes(request, reply))
        self._samples = _sample_counts(request)
        measured = self._statistics(request, reply, arrays)
        check_counts(card, measured.values())
        exact = {
            predictor: statistics
            for predictor, statistics in measured.items()
            if not isinstance(statistics, NoisedCounts)
        }
        if len({sums.of_records() for sums in exact.values()}) > 1:
            raise ValueError("it measured its predictors on different test records")
        self._subgroups += self._read_subgroups(card, reply, arrays=arrays, whole=measured)
        for predictor, statistics in measured.items():
            stored = statistics if isinstance(statistics, NoisedCounts) else sparse(statistics)
            self.places.append(Place(card.name, card.role, predictor, stored))
        first = exact.get(request.measured[0])
        if isinstance(first, CalibrationStatistics) and first.count:
            self._shares[card.name] = tuple(map(float, prevalence(first)))
        if reply.groups_left_out:
            self._left_out[card.name] = reply.groups_left_out
        if privacy is not None:
            self.statements[card.name] = privacy

    def _check_release(
        self, card: SiteCard, request: EvaluateRequest, reply: EvaluateReply
    ) -> None:
        """Raise a ValueError where results left otherwise than card and plan say."""
        nbytes = self._form.nbytes if reply.noise_std is None else self._form.noised_nbytes
        if len(reply.groups) > most_groups(len(request.measured) * nbytes):
            raise ValueError(
                f"it measured {len(reply.groups)} subgroups, whose tables are too large for a reply"
            )
        if reply.release != card.evaluation_release:
            raise ValueError(
                f"its card says that results leave {card.evaluation_release!r}, "
                f"they are {reply.release!r}"
            )
        if reply.noise_std is not None:
            if self._form.noised is None:
                raise ValueError("it sent noised sums, of which this outcome has none")
            attributes = {attribute for attribute, _ in reply.groups}
            if len(attributes) > MAX_GROUP_ATTRIBUTES:
                raise ValueError(
                    f"its noised subgroups are of {len(attributes)} attributes, at most "
                    f"{MAX_GROUP_ATTRIBUTES} are counted"
                )
            sensitivity = largest_sensitivity(tables=1 + len(attributes))
            check_noise(
                noise_std=reply.noise_std,
                of_one_record=sensitivity * (request.noise_multiplier or 0.0),
                most_records=self._max_records_per_unit,
            )

    def _checked_privacy(
        self, card: SiteCard, request: EvaluateRequest, reply: EvaluateReply
    ) -> PrivacyStatement | None:
        """Check what noised results cost, if the reply says so."""
        statement = reply.privacy
        if statement is None:
            return None
        if statement.units != card.units or statement.adjacency != self._adjacency:
            raise ValueError("its privacy statement does not fit its card or the plan")
        history = (GaussianEvent(request.noise_multiplier or 0.0, 1.0, len(request.measured)),)
        return checked_statement(statement, history, history, None, request.delta)

    def _shapes(self, request: EvaluateRequest, reply: EvaluateReply) -> Shapes:
        """Return name -> shape of the arrays that a reply must bring."""
        table = self._form.shapes
        if self._form.noised is not None and reply.noise_std is not None:
            table = {"noised": self._form.noised}
        groups = ["", *(f"{subgroup_prefix(number)}/" for number in range(len(reply.groups)))]
        shapes: dict[str, tuple[int, ...]] = {}
        for group in groups:
            for predictor in request.measured:
                shapes |= prefixed(f"{group}{predictor}", table)
        return shapes

    def _statistics(
        self, request: EvaluateRequest, reply: EvaluateReply, arrays: Arrays
    ) -> dict[str, Statistics]:
        """Return the statistics of each predictor over all test records."""
        measured: dict[str, Statistics] = {}
        for predictor in request.measured:
            sums = without_prefix(predictor, arrays)
            if reply.noise_std is None:
                measured[predictor] = self._form.read(sums)
            else:
                measured[predictor] = self._noised(sums, reply.noise_std)
        return measured

    def _noised(self, sums: Arrays, noise_std: float) -> NoisedCounts:
        """Return the noised counts of a message."""
        return NoisedCounts(
            sums=sums["noised"], noise_std=noise_std, classes=self._form.classes or 0
        )

    def _read_subgroups(
        self,
        card: SiteCard,
        reply: EvaluateReply,
        arrays: Arrays,
        whole: Mapping[str, Statistics],
    ) -> list[Place]:
        """Read and check the statistics of a reply's subgroups."""
        if reply.noise_std is None:
            exact = {
                predictor: statistics
                for predictor, statistics in whole.items()
                if not isinstance(statistics, NoisedCounts)
            }
            return read_subgroups(card, reply.groups, arrays=arrays, whole=exact, form=self._form)
        places = []
        for number, group in enumerate(reply.groups):
            for predictor in whole:
                prefix = f"{subgroup_prefix(number)}/{predictor}"
                table = self._noised(without_prefix(prefix, arrays), reply.noise_std)
                check_counts(card, [table])
                places.append(Place(card.name, card.role, predictor, table, group))
        return places

    def calibration_rows(self) -> list[CalibrationRecord]:
        """Summarise pooled roles first, then the means over the sites of each, then sites."""
        return [*self._pooled_rows, *mean_rows(self._site_rows), *self._site_rows]

    def reliability_rows(self) -> list[ReliabilityRecord]:
        """Return diagrams of exact sums: of pooled roles, then of the sites that a page shows."""
        rows = []
        for place in [*self._pooled, *self._shown_sites]:
            statistics = place.of_classes
            if statistics is None:
                continue
            rows.append(
                ReliabilityRecord(
                    site=place.site,
                    role=place.role,
                    predictor=place.predictor,
                    samples=self._samples[place.predictor],
                    risk=statistics.risk is not None,
                    roc=roc_points(statistics) if place.site in POOLED else (),
                    bins=reliability_bins(statistics),
                    curve=smooth_curve(statistics),
                )
            )
        return rows

    @property
    def _shown_sites(self) -> list[Place]:
        """The most telling sites, of the predictor that a hospital would take.

        More diagrams would be read by nobody, and make the largest part of a summary.
        """
        predictor = recommended_predictor({place.predictor for place in self.places})
        rows = {row.site: row for row in self._site_rows if row.predictor == predictor}
        places = [place for place in self.places if place.predictor == predictor]
        if len(places) > MAX_RELIABILITY_SITES:
            places.sort(
                key=lambda place: telling_order(rows[place.site], trained=place.role == "train")
            )
            return places[:MOST_SHOWN]
        return places

    def class_shares(self, site: str) -> tuple[float, ...] | None:
        """Return the share of each class among a site's test records.

        None where its sums are noised or absent.
        """
        return self._shares.get(site)

    def pooled_metrics(self) -> dict[str, int | float]:
        """Return `<role>/<predictor>/<metric>` of the pooled roles, as far as defined."""
        metrics: dict[str, int | float] = {}
        for row in self._pooled_rows:
            for name in FLOWER_METRICS:
                value = getattr(row, name)
                if value is not None:
                    metrics[f"{row.role}/{row.predictor}/{name}"] = value
        return metrics

    def subgroup_rows(self) -> list[SubgroupRecord]:
        """Return the rows of subgroups; those of pooled roles first."""
        rows = []
        for place in subgroup_sets(self._subgroups, self._pooled_roles):
            assert place.group is not None
            attribute, value = place.group
            row = dict(self._calibration_row(place))
            rows.append(SubgroupRecord(**row, attribute=attribute, value=value))
        return rows

    def shift_detection_rows(self) -> list[ShiftDetectionRecord]:
        """Say how well uncertainty tells other places from training sites: pools, then sites."""
        measured = [
            place for place in (*self._pooled, *self.places) if place.predictor == SHIFT_PREDICTOR
        ]
        training = (
            place.of_classes
            for place in measured
            if place.role == "train" and place.site != "pooled:train"
        )
        exact = (statistics for statistics in training if statistics is not None)
        first = next(exact, None)
        return shift_detection_rows(
            reference=None if first is None else reduce(CalibrationStatistics.plus, exact, first),
            places=(place for place in measured if place.role != "train"),
            samples=self._samples.get(SHIFT_PREDICTOR, 0),
        )

    def conformal_rows(self) -> list[ConformalRecord]:
        """Measure prediction sets at the sites that did not train."""
        training_first = sorted(
            [*self._pooled, *self.places], key=lambda place: place.site != "pooled:train"
        )
        return conformal_rows(training_first)

    def warnings(self) -> list[RunWarning]:
        """Name the sites that hold most of what is pooled, decide it, or left subgroups out."""
        warnings: list[RunWarning] = []
        for role in ROLES:
            warnings += self._role_warnings(role)
        for site, count in self._left_out.items():
            warnings.append(warning("subgroups-left-out", site, left_out=count, most=MAX_GROUPS))
        return warnings

    def _role_warnings(self, role: Role) -> list[RunWarning]:
        by_predictor = self._places_of(role)
        if not by_predictor:
            return []
        if role in self._roles_sharing_records:
            return [warning("same-records", role=role)]
        warnings: list[RunWarning] = []
        dominating = dominating_site(role, _largest_counts(by_predictor.values()))
        if dominating is not None:
            warnings.append(dominating)
        tables: dict[str, NoisedCounts] = {}
        for place in by_predictor.get(self._headline, []):
            statistics = place.statistics
            empty = empty_site(place.site, statistics)
            if empty is not None:
                warnings.append(empty)
            # What noise hides is still pooled.
            if isinstance(statistics, NoisedCounts):
                tables[place.site] = statistics
            elif empty is None and isinstance(statistics, CalibrationStatistics):
                tables[place.site] = without_noise(statistics)
        warnings += decisive_sites(role, tables)
        named = {decided.site for decided in warnings if decided.kind == "decisive"}
        for predictor, places in by_predictor.items():
            for decided in _decided_means(role, predictor, places):
                if decided.site not in named:
                    named.add(decided.site)
                    warnings.append(decided)
        return warnings

    @property
    def _headline(self) -> str:
        """The predictor that is read first."""
        return recommended_predictor(self._samples)

    @property
    def _sites(self) -> set[str]:
        return {place.site for place in self.places}

    def _places_of(self, role: Role) -> dict[str, list[Place]]:
        """Return the places of a role by predictor, these in the order of all roles."""
        by_predictor: dict[str, list[Place]] = {place.predictor: [] for place in self.places}
        for place in self.places:
            if place.role == role:
                by_predictor[place.predictor].append(place)
        return {predictor: places for predictor, places in by_predictor.items() if places}

    @cached_property
    def _pooled(self) -> list[Place]:
        """The pools of each role and predictor; all sites have answered."""
        pools = []
        for role in self._pooled_roles:
            by_predictor = self._places_of(role)
            sites = {place.site for places in by_predictor.values() for place in places}
            # Over some of the sites only it could not be held against the other predictors.
            pools += [
                pooled(places) for places in by_predictor.values() if len(places) == len(sites)
            ]
        return pools

    @cached_property
    def _site_rows(self) -> list[CalibrationRecord]:
        """The rows of single sites; all have answered."""
        return [self._calibration_row(place) for place in self.places]

    @cached_property
    def _pooled_rows(self) -> list[CalibrationRecord]:
        return [self._calibration_row(place) for place in self._pooled]

    def _calibration_row(self, place: Place) -> CalibrationRecord:
        return CalibrationRecord(
            **dict(self._values(place)),
            site=place.site,
            role=place.role,
            predictor=place.predictor,
            samples=self._samples[place.predictor],
        )

    def _values(self, place: Place) -> CalibrationValues:
        statistics = place.statistics
        generator = np.random.default_rng(self._seed)
        if isinstance(statistics, NoisedCounts):
            values = summarise_noised(statistics, generator)
        else:
            values = summarise(statistics, generator)
        if place.site not in POOLED and len(self._sites) > MAX_CURVE_SITES:
            values = values.model_copy(update={"net_benefit": None})
        if place.predictor in MAPPED or self._samples[place.predictor] == 1:
            # One sample has nothing to disagree with, which is not agreement; and a map acts on
            # averaged probabilities, which no longer tell the two uncertainties apart.
            values = values.model_copy(update={"epistemic": None, "aleatoric": None})
        return values


def _sample_counts(request: EvaluateRequest) -> dict[str, int]:
    """Return how many samples each predictor of a request averages."""
    counts: dict[str, int] = {name: len(weights) for name, weights in request.predictors.items()}
    return counts | dict.fromkeys(MAPPED, counts.get("posterior", 0))


def _decided_means(role: Role, predictor: str, places: Iterable[Place]) -> Iterator[RunWarning]:
    """Name the sites that decide a pooled mean of a predictor, of exact sums."""
    totals: dict[str, dict[str, Total]] = {}
    for place in places:
        exact = place.exact
        if exact is not None:
            for metric, total in exact.totals().items():
                totals.setdefault(metric, {})[place.site] = total
    for metric, totals_of_sites in totals.items():
        decided = decisive_means(
            role=role,
            metric=f"{metric} of the {PREDICTORS[predictor]}",
            totals=totals_of_sites,
        )
        if decided is not None:
            yield decided


def _largest_counts(by_predictor: Iterable[Iterable[Place]]) -> dict[str, float]:
    """Return each site's number of test records, the largest of its predictors."""
    counts: dict[str, float] = {}
    for places in by_predictor:
        for place in places:
            count = record_count(place.statistics)
            counts[place.site] = max(count, counts.get(place.site, -math.inf))
    return counts
