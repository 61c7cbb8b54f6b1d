"""Calibration at every site from additive statistics: per site, and pooled per role."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from flwr.app import Message

from fl_dpbayes.calibration.bins import REPORT_BINS, coarsen
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, merge_noised, noised_from_arrays
from fl_dpbayes.calibration.reliability import reliability_bins
from fl_dpbayes.calibration.statistics import CalibrationStatistics, empty, from_arrays, merge, to_arrays
from fl_dpbayes.calibration.summarise import CalibrationSummary, summarise
from fl_dpbayes.calibration.summarise_noised import summarise_noised
from fl_dpbayes.protocol.arrays import prefixed, without_prefix
from fl_dpbayes.protocol.card import Card, Role
from fl_dpbayes.protocol.evaluate import RECALIBRATED, EvaluateReply, EvaluateRequest
from fl_dpbayes.protocol.train import PrivacyStatement
from server.evaluation_counts import Statistics, check_counts, check_noise, dominating_site, record_count
from server.messages import read_arrays

ROLES: tuple[Role, ...] = ("held_out", "shifted", "train")


@dataclass(frozen=True)
class SiteStatistics:
    """What one site sent about one predictor, exact or noised."""

    card: Card
    predictor: str
    statistics: Statistics


class Evaluation:
    """Collects the sites' statistics and summarises them."""

    def __init__(self, classes: int, roles_sharing_records: Collection[Role] = ()) -> None:
        """Collect for so many classes; roles whose sites hold the same records are not pooled."""
        self.classes = classes
        self._unpooled = roles_sharing_records
        self.parts: list[SiteStatistics] = []
        self._samples: dict[str, int] = {}
        self.statements: dict[str, PrivacyStatement] = {}
        self._exact_shapes = {name: array.shape for name, array in to_arrays(empty(classes)).items()}

    def add(self, card: Card, request: EvaluateRequest, record: EvaluateReply, reply: Message) -> None:
        """Check and keep a site's statistics for every predictor that was asked for.

        Raises:
            ValueError: if arrays are missing, of another shape, contradict each other, or count more records than the
                site's size allows; nothing is then kept.
        """
        noised = record.noise_std is not None
        if record.noise_std is not None:
            check_noise(record.noise_std, request.noise_multiplier or 0.0)
        one = {"noised": (REPORT_BINS, SENT_COLUMNS)} if noised else self._exact_shapes
        shapes: dict[str, tuple[int, ...]] = {}
        for predictor in request.measured:
            shapes |= prefixed(predictor, one)
        arrays = read_arrays(reply, shapes, np.float64)
        parts = []
        # A recalibrated predictor is the posterior, mapped.
        counts = {name: len(weights) for name, weights in request.predictors.items()}
        self._samples = counts | {RECALIBRATED: counts.get("posterior", 0)}
        for predictor in request.measured:
            tables = without_prefix(predictor, arrays)
            statistics: Statistics = (
                from_arrays(tables, self.classes)
                if record.noise_std is None
                else noised_from_arrays(tables, REPORT_BINS, record.noise_std)
            )
            parts.append(SiteStatistics(card, predictor, statistics))
        check_counts(card, [part.statistics for part in parts])
        self.parts += parts
        if record.privacy is not None:
            self.statements[card.name] = record.privacy

    def rows(self, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Summarise pooled roles first, then sites.

        Args:
            seed: seeds the draws behind intervals and references.

        Returns:
            The summary's `calibration` rows, and its `reliability` rows (pooled roles with exact sums only).
        """
        calibration, reliability = [], []
        for name, role, predictor, statistics in [*self._pooled(), *self._by_site()]:
            key = {"site": name, "role": role, "predictor": predictor, "samples": self._samples[predictor]}
            row = {**key, **_summary(statistics, np.random.default_rng(seed)).as_row()}
            if predictor == RECALIBRATED or self._samples[predictor] == 1:
                # One sample has nothing to disagree with, which is not agreement; and a map acts on averaged
                # probabilities, which no longer tell the two uncertainties apart.
                row |= {"epistemic": None, "aleatoric": None}
            calibration.append(row)
            if name.startswith("pooled:") and isinstance(statistics, CalibrationStatistics):
                reliability.append({**key, "bins": [row.as_row() for row in reliability_bins(statistics)]})
        return calibration, reliability

    def warnings(self) -> list[str]:
        """Name the sites that hold most of what is pooled, by the largest count that each states of a predictor."""
        sentences = []
        for role in ROLES:
            if role in self._unpooled and any(part.card.role == role for part in self.parts):
                sentences.append(
                    f"{role} sites hold the same records (records_of), so they are not pooled: the same patients would "
                    "count several times, and the interval would be too narrow; compare these sites one by one"
                )
                continue
            counts: dict[str, float] = {}
            for part in self.parts:
                if part.card.role == role:
                    count = record_count(part.statistics)
                    counts[part.card.name] = max(count, counts.get(part.card.name, count))
            if counts and (sentence := dominating_site(role, counts)):
                sentences.append(sentence)
        return sentences

    def _by_site(self) -> list[tuple[str, Role, str, Statistics]]:
        return [(part.card.name, part.card.role, part.predictor, part.statistics) for part in self.parts]

    def _pooled(self) -> list[tuple[str, Role, str, Statistics]]:
        pooled = []
        for role in (role for role in ROLES if role not in self._unpooled):
            for predictor in dict.fromkeys(part.predictor for part in self.parts):
                members = [
                    part.statistics for part in self.parts if (part.card.role, part.predictor) == (role, predictor)
                ]
                if members:
                    pooled.append((f"pooled:{role}", role, predictor, reduce(_merge, members)))
        return pooled


def _summary(statistics: Statistics, generator: np.random.Generator) -> CalibrationSummary:
    if isinstance(statistics, NoisedTable):
        return summarise_noised(statistics, generator)
    return summarise(statistics, generator)


def _merge(first: Statistics, second: Statistics) -> Statistics:
    if isinstance(first, CalibrationStatistics) and isinstance(second, CalibrationStatistics):
        return merge(first, second)
    return merge_noised(_coarse(first), _coarse(second))


def _coarse(statistics: Statistics) -> NoisedTable:
    """Reduce exact sums to what a noised table holds, with noise 0, so that the two kinds of sites can be pooled."""
    if isinstance(statistics, NoisedTable):
        return statistics
    return NoisedTable(coarsen(statistics.top_label, REPORT_BINS)[:, :SENT_COLUMNS], 0.0)
