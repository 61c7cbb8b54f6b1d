"""The content of `summary.json`, written down once: what a run writes, and what tables, figures and the report read.

Fields stand in the order in which they are written.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_serializer,
)

from fl_dpbayes.config.installed_code import InstalledCode
from fl_dpbayes.config.metrics import METRICS
from fl_dpbayes.config.names import Role
from fl_dpbayes.files import JSONValue, json_values

MAX_TEXT = 500


def printable(value: JSONValue, most: int | None = MAX_TEXT) -> JSONValue:
    """Replace control and direction characters in every text but keys, and cut long ones.

    A name from outside must not steer a terminal or a page.
    """
    if isinstance(value, str):
        value = value[:most]
        return (
            value
            if value.isprintable()
            else "".join(each if each.isprintable() else "�" for each in value)
        )
    if isinstance(value, list):
        return [printable(item, most) for item in value]
    return (
        {key: printable(item, most) for key, item in value.items()}
        if isinstance(value, dict)
        else value
    )


Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
Number = Annotated[
    float | None,
    AfterValidator(lambda value: None if value is None or math.isnan(value) else value),
]
Interval = tuple[Number, Number] | None


class SummaryPart(BaseModel):
    """A frozen part of the summary; keys that the report does not know are left aside."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class SiteRecord(SummaryPart):
    """One site: `n` privacy units declared, `test_n` records tested, `shares` of the classes among them, if exact."""

    name: Text
    role: Role
    n: int | None = None
    unit: Text = "record"
    shift: Text = ""
    test_n: int | None = None
    shares: tuple[float, ...] | None = None


class EvaluationPrivacyRecord(SummaryPart):
    """What noised test results cost one site's test units, in this run and earlier ones of its cohort."""

    site: Text
    unit: Text = "record"
    delta: Number = None
    epsilon: Number = None
    epsilon_method: Text = ""
    mu: Number = None
    mu_kind: Text = ""
    budget: Number = None


class PrivacyRecord(EvaluationPrivacyRecord):
    """What a run cost one site's training units.

    `temperature` is the mean over steps weighted by step size.

    `epsilon` is that of training, `recalibration_epsilon` that of recalibration, which is spent on
    other units of the site: each unit's cost is one of the two, so at most the larger.
    """

    status: Text = ""
    temperature: Number = None
    temperature_range: Interval = None
    recalibration_epsilon: Number = None
    steps: int | None = None
    history: tuple[tuple[float, float, int], ...] = ()
    rounds: int | None = None

    @property
    def largest_epsilon(self) -> float | None:
        """The cost to any one unit: the larger of training and recalibration.

        None if either is not recorded.
        """
        if self.epsilon is None:
            return None
        return max(self.epsilon, self.recalibration_epsilon or 0.0)


class SmallDeltaRecord(SummaryPart):
    """The costliest site's epsilon of training at a smaller delta than its own."""

    site: Text
    delta: float
    epsilon: Number = None


class ParticipationRecord(SummaryPart):
    """How a training site's rounds went, one status for each round of the run.

    `distance`: from the median site, in distances of the others (`posterior/far_off.py`).
    """

    site: Text
    statuses: tuple[Text, ...] = ()
    distance: Number = None


class NetBenefitRecord(SummaryPart):
    """Net benefit of treating above a threshold, beside treating all and none.

    `counts`: true and false positives, false and true negatives.
    """

    threshold: float
    counts: tuple[int, int, int, int] | None = None
    model: Number = None
    interval: Interval = None
    all: Number = None
    none: Number = None


# What stands beside a metric.
_BESIDE: dict[str, dict[str, Any]] = {
    "nll": {"nll_clipped": int | None},
    "ece_binary": {"ece_if_calibrated": Number, "ece_if_calibrated_high": Number},
    "auroc": {"auroc_bounds": Interval},
    "aurc_excess": {"aurc_bounds": Interval},
    "calibration_slope": {"net_benefit": tuple[NetBenefitRecord, ...] | None},
}


def _measured() -> Any:
    """A part with the metrics in the order of their records, each with what stands beside it."""
    fields: dict[str, Any] = {}
    for metric in METRICS.values():
        fields |= {metric.key: Number, **_BESIDE.get(metric.key, {})}
    fields |= {f"{metric.key}_bounds": Interval for metric in METRICS.values() if metric.bounded}
    optional: Any = {name: (kind, None) for name, kind in fields.items()}
    return create_model("_Measured", __base__=SummaryPart, **optional)


_Measured: Any = _measured()


class CalibrationValues(_Measured):
    """Every metric of `config.metrics` of one predictor on one set of `n` records.

    Undefined values are None.

    `n` is rounded where records were counted with noise. `nll_clipped`: records whose p_label was
    below the floor. `ece_if_calibrated`: mean ECE of a calibrated model with the same confidences
    at this n, `..._high` its 95 % quantile. `auroc_bounds`, `aurc_bounds`: what they can be at
    least and at most, whatever the order within cells; no interval. `net_benefit`: decision curve
    at steps of .05; two classes only. `intervals`: 95 % intervals of metrics that have one that
    covers; `nll` has none where one more wrong answer could change too much.
    """

    n: int | None = None
    intervals: dict[str, Interval] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _in_order(self, plain: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        row = plain(self)
        first = ("site", "role", "predictor", "samples", "attribute", "value", "n")
        last = {"intervals": row.pop("intervals")} if "intervals" in row else {}
        return {name: row.pop(name) for name in first if name in row} | row | last

    def as_row(self) -> dict[str, Any]:
        """Return the values as plain numbers, intervals as lists [low, high].

        N first, intervals last.
        """
        return self.model_dump(mode="json")


class CalibrationRecord(CalibrationValues):
    """How one predictor did at one site, or at all sites of a role; it averages `samples`.

    `pooled:<role>` takes the sites' records as one set, `mean:<role>` averages the sites' rows, and
    `median:<role>` is their median, which the report takes.
    """

    site: Text
    role: Role
    predictor: Text
    samples: int | None = None

    @property
    def over(self) -> Literal["pooled", "mean", "median", ""]:
        """What the row is over its role's sites; empty for one site's own."""
        kind, _, role = self.site.partition(":")
        return kind if role == self.role and kind in ("pooled", "mean", "median") else ""  # type: ignore[return-value]


class BaselineRecord(CalibrationRecord):
    """How a simpler predictor did on the same test records.

    `trained_at` is the site of one that trained alone.
    """

    trained_at: Text = ""


class Baselines(SummaryPart):
    """What simpler predictors reach without privacy; `missing` says why one was not computed."""

    rows: tuple[BaselineRecord, ...] = ()
    missing: dict[str, Text] = Field(default_factory=dict)


class SubgroupRecord(CalibrationRecord):
    """How one predictor did on the records of one subgroup, such as attribute "sex", value "female"."""

    attribute: Text
    value: Text


class ShiftDetectionRecord(SummaryPart):
    """How well uncertainty tells a place's records from those of the training sites: `auroc` is .5 by chance.

    `measure` is "epistemic" or "total"; `low` and `high` bound the AUROC whatever the order within
    a cell.
    """

    site: Text
    predictor: Text
    measure: Text
    auroc: Number = None
    low: Number = None
    high: Number = None
    interval: Interval = None
    n_reference: int | None = None
    n: int | None = None


class ConformalRecord(SummaryPart):
    """How conformal prediction sets did at one place: `coverage` is to be `level` or more, `size` small.

    `weights` is "none", "label-shift" (by the place's own labels) or "label-shift-estimated" (by
    its predictions).
    """

    site: Text
    role: Role
    predictor: Text
    level: float
    weights: Text
    calibrated_on: Text = ""
    coverage: Number = None
    interval: Interval = None
    size: Number = None
    n: int | None = None
    n_calibration: int | None = None


class ReliabilityBin(SummaryPart):
    """Records whose risk, or confidence, is in [low, high); the band is where a calibrated model would lie."""

    low: float
    high: float
    n: int
    confidence: Number = None
    accuracy: Number = None
    band_low: Number = None
    band_high: Number = None


class ReliabilityRecord(SummaryPart):
    """The bins of one reliability diagram: of class 1's `risk` where there are two classes, else of confidence.

    `roc`: false and true positive rates at falling thresholds, of two classes.
    """

    site: Text
    role: Role
    predictor: Text
    samples: int | None = None
    risk: bool = False
    roc: tuple[tuple[float, float], ...] = ()
    bins: tuple[ReliabilityBin, ...]


class RecalibrationRecord(SummaryPart):
    """The map that was fitted; `noise` says so where it is mostly privacy noise, else it is empty.

    `average` has its parameters over the training sites, `sites` each site's own.
    """

    method: Text
    noise: Text = ""
    average: tuple[float, ...] = ()
    sites: dict[str, tuple[float, ...]] = Field(default_factory=dict)


class SettingRecord(SummaryPart):
    """One line of what was run."""

    name: Text
    value: Text


class ReleaseRecord(SummaryPart):
    """Something that a site holds, and how it left: paid in ledger, public by declaration, or not sent."""

    item: Text
    how: Text


class PassRecord(SummaryPart):
    """What passes over records looked like at some `sites`: how many records each held, and what computed them.

    `rows` is `wanted`, twice or four times as many, or 1: a count at which each record stood alone,
    bit for bit, on made-up records. `slower`: how many times as long a record took as in a plain
    pass of `wanted` records.
    """

    sites: tuple[Text, ...] = ()
    computation: Text
    wanted: int
    rows: int
    products: Text = "plain"
    slower: float = 1.0
    processor: Text = ""
    library: Text = ""
    reproducible: Text = ""


class AggregationInputs(SummaryPart):
    """What the server's rule consumed beyond released samples: made-up inputs, or records declared public.

    `divergence` is the mean KL(teacher || student) in nats at these inputs.
    """

    kind: Text
    pattern: Text = ""
    file: Text = ""
    statement: Text = ""
    count: int | None = None
    labelled: bool = False
    beta: Number = None
    divergence: Number = None


class HospitalRecord(SummaryPart):
    """What a posterior over hospitals says, by name `of`, with a 90 % interval.

    A standard deviation between so many (`among`) of them, in log odds; the prior says it where it
    is not `identified`. Or (no `among`) a new hospital's rate of class 1 in the declared
    population, without the chance of patients.
    """

    of: Text
    value: float
    interval: tuple[float, float]
    among: int | None = None
    identified: bool = True


class Traffic(SummaryPart):
    """Bytes per round, from the sites (up) and to them (down)."""

    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()


class Summary(SummaryPart):
    """A whole run.

    `class_names` in the order of the classes, empty where they have no names but their numbers.
    """

    scenario: Text
    description: Text = ""
    data: Text = ""
    finished: Text = ""
    seed: int | None
    run: Text = ""
    resumed_after: tuple[int, ...] = ()
    versions: dict[str, Text]
    code: tuple[InstalledCode, ...] = ()
    adjacency: Text
    seeded: bool = False
    private: bool = True
    class_names: tuple[Text, ...] = ()
    settings: tuple[SettingRecord, ...] = ()
    sampler: Text = ""
    chains: int = 1
    aggregation: Text = ""
    aggregation_inputs: AggregationInputs | None = None
    sites: tuple[SiteRecord, ...]
    clipped: bool = True
    coupling: Text = ""
    averaged_temperature: Number = None
    privacy: tuple[PrivacyRecord, ...]
    small_delta: SmallDeltaRecord | None = None
    participation: tuple[ParticipationRecord, ...] = ()
    recalibration: RecalibrationRecord | None = None
    calibration: tuple[CalibrationRecord, ...]
    baselines: Baselines | None = None
    reliability: tuple[ReliabilityRecord, ...] = ()
    subgroups: tuple[SubgroupRecord, ...] = ()
    shift_detection: tuple[ShiftDetectionRecord, ...] = ()
    conformal: tuple[ConformalRecord, ...] = ()
    hospitals: tuple[HospitalRecord, ...] = ()
    evaluation_privacy: tuple[EvaluationPrivacyRecord, ...] = ()
    releases: tuple[ReleaseRecord, ...] = ()
    bytes: Traffic
    seconds: dict[str, Number]
    passes: tuple[PassRecord, ...] = ()
    configurations_tried: int | None
    # `posterior.convergence.ConvergenceSummary` with `site` and `warning`; nothing reads it here.
    convergence: tuple[dict[str, Any], ...] = ()
    warnings: tuple[Text, ...] = ()
    heterogeneity: Number = None
    feature_total_variation: Number = None

    @property
    def trained(self) -> list[SiteRecord]:
        """The sites of which the run has steps."""
        return [
            site
            for site in self.sites
            if site.name in {row.site for row in self.privacy if row.steps}
        ]

    @property
    def places(self) -> list[CalibrationRecord]:
        """The calibration rows that were measured on records: sites and pools of them, no means of rows."""
        return [row for row in self.calibration if row.over != "mean"]

    @property
    def recalibration_noise(self) -> str:
        """Why the recalibrated probabilities are not to be used.

        Empty where nothing speaks against them.
        """
        return self.recalibration.noise if self.recalibration else ""


def parse_summary(summary: Mapping[str, object]) -> Summary:
    """Validate a summary as `summary.json` holds it; its texts become fit to be shown.

    `summary`: undefined numbers are None or NaN, infinite ones inf or "inf". Raises ValueError
    naming the first part that is missing or of another type.
    """
    shown = {
        name: partial(printable, most=None if name == "warnings" else MAX_TEXT) for name in summary
    }
    # Of long lists, such as the rows of thousands of sites, one item at a time.
    return Summary.model_validate(
        {
            name: map(shown[name], map(json_values, value))
            if isinstance(value, list)
            else shown[name](json_values(value))
            for name, value in summary.items()
        }
    )
