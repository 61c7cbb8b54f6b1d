"""The content of `summary.json`, written down once: what a run writes and the report reads.

Fields stand in the order in which they are written.
"""

from collections.abc import Mapping
from functools import partial

from pydantic import Field

from fl_dpbayes.calibration import (
    CalibrationRecord,
    ConformalRecord,
    Ends,
    Number,
    ReliabilityRecord,
    ShiftDetectionRecord,
    SubgroupRecord,
    SummaryPart,
    Text,
)
from fl_dpbayes.config import AnyOutcome, Classification, InstalledCode, Measures, Role
from fl_dpbayes.files import JSONValue, json_values

MAX_TEXT = 500
NOT_PRINTABLE = "�"


def printable(value: JSONValue, most: int | None = MAX_TEXT) -> JSONValue:
    """Replace control and direction characters in every text but keys, and cut long ones.

    A name from outside must not steer a terminal or a page.

    Args:
        value: Any JSON value.
        most: The most characters of a text; None for all of them.
    """
    if isinstance(value, str):
        return _printable_text(value if most is None else shortened(value, most))
    if isinstance(value, list):
        return [printable(item, most) for item in value]
    if isinstance(value, dict):
        return {key: printable(item, most) for key, item in value.items()}
    return value


def shortened(text: str, most: int) -> str:
    """Cut a long text to so many characters, behind a word where there is one, with an ellipsis."""
    if len(text) <= most:
        return text
    kept = text[: most - 1]
    words, blank, _ = kept.rpartition(" ")
    return f"{words.rstrip(' ,;:(') if blank else kept}…"


def _printable_text(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else NOT_PRINTABLE for letter in text)


class SiteRecord(SummaryPart):
    """One site of the run.

    Attributes:
        name: The site's name.
        role: What it does in the run.
        n: How many privacy units it declares.
        unit: What a privacy unit is.
        shift: How its records differ from the others', in words; empty where they do not.
        test_n: How many records were tested.
        shares: The share of each class among these, if exact.
    """

    name: Text
    role: Role
    n: int | None = None
    unit: Text = "record"
    shift: Text = ""
    test_n: int | None = None
    shares: tuple[float, ...] | None = None


class EvaluationPrivacyRecord(SummaryPart):
    """What noised test results cost one site's test units, in all runs of its cohort.

    Attributes:
        site: The site's name.
        unit: What a privacy unit is.
        delta: The probability with which epsilon may fail.
        epsilon: What was spent.
        epsilon_method: How epsilon was computed.
        mu: The cost in Gaussian differential privacy.
        mu_kind: "exact" or "clt".
        budget: The most epsilon that the site allows.
    """

    site: Text
    unit: Text = "record"
    delta: Number = None
    epsilon: Number = None
    epsilon_method: Text = ""
    mu: Number = None
    mu_kind: Text = ""
    budget: Number = None


class PrivacyRecord(EvaluationPrivacyRecord):
    """What a run cost one site's training units: `epsilon` is that of training.

    Attributes:
        status: How the site's last round went.
        temperature: The mean over steps, weighted by step size.
        temperature_range: The least and the largest.
        recalibration_epsilon: The cost of recalibration, on other units of the site. Each unit
            pays one of the two, so at most the larger.
        steps: How many steps were done.
        history: (noise multiplier, sampling rate, steps) of each stretch.
        rounds: How many rounds the site trained in.
    """

    status: Text = ""
    temperature: Number = None
    temperature_range: Ends = None
    recalibration_epsilon: Number = None
    steps: int | None = None
    history: tuple[tuple[float, float, int], ...] = ()
    rounds: int | None = None

    @property
    def largest_epsilon(self) -> float | None:
        """The most that any unit pays, for training or recalibration; None if not recorded."""
        if self.epsilon is None:
            return None
        return max(self.epsilon, self.recalibration_epsilon or 0.0)


class SmallDeltaRecord(SummaryPart):
    """The costliest site's epsilon of training at a smaller delta than its own."""

    site: Text
    delta: float
    epsilon: Number = None


class ParticipationRecord(SummaryPart):
    """How a training site's rounds went.

    Attributes:
        site: The site's name.
        statuses: One for each round of the run.
        distance: From the median site, in distances of the others (`posterior/far_off.py`).
    """

    site: Text
    statuses: tuple[Text, ...] = ()
    distance: Number = None


class BaselineRecord(CalibrationRecord):
    """How a simpler predictor did on the same test records.

    Attributes:
        trained_at: The site of one that trained on one site's records alone.
    """

    trained_at: Text = ""


class Baselines(SummaryPart):
    """What simpler predictors reach without privacy.

    Attributes:
        rows: One for each predictor and role.
        missing: Predictor -> why it was not computed.
    """

    rows: tuple[BaselineRecord, ...] = ()
    missing: dict[str, Text] = Field(default_factory=dict)


class RecalibrationRecord(SummaryPart):
    """The map that was fitted.

    Attributes:
        method: A recalibration method's name.
        noise: Says so where the map is mostly privacy noise, else empty.
        average: Its parameters over the training sites.
        sites: The parameters of each site's own map.
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
    """Something that a site holds, and how it left.

    Attributes:
        item: What it is.
        how: Paid in ledger, public by declaration, or not sent.
    """

    item: Text
    how: Text


class PassRecord(SummaryPart):
    """What passes over records looked like at some sites.

    Attributes:
        sites: At which sites.
        computation: What was computed.
        wanted: How many records a pass was to hold.
        rows: How many it held: `wanted`, twice or four times as many, or 1. At this count each
            made-up record stood alone, bit for bit.
        products: How matrix products were computed.
        slower: How many times as long a record took as in a plain pass of `wanted` records.
        processor: What computed them.
        library: With which library.
        reproducible: Its setting for reproducible results.
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
    """What the server's rule consumed beyond released samples.

    Attributes:
        kind: "file" for records declared public, else made-up inputs.
        pattern: How made-up inputs were drawn.
        file: The file's name.
        statement: Who declared the records public.
        count: How many inputs.
        labelled: Whether labels were used.
        beta: That of PredBayes.
        divergence: Mean KL(teacher || student) in nats at these inputs.
    """

    kind: Text
    pattern: Text = ""
    file: Text = ""
    statement: Text = ""
    count: int | None = None
    labelled: bool = False
    beta: Number = None
    divergence: Number = None


class ConvergenceRecord(SummaryPart):
    """How well the chains of one site agree: `posterior.convergence.ConvergenceSummary` in JSON.

    Attributes:
        site: The site's name, or that of the averaged chain.
        warning: What is wrong with the chains, in a sentence; empty where nothing is.
    """

    site: Text
    chains: int
    samples_per_chain: int
    quantities: int
    r_hat_max: Number = None
    r_hat_median: Number = None
    r_hat_above_1_01: Number = None
    r_hat_above_1_1: Number = None
    effective_samples_min: Number = None
    effective_samples_median: Number = None
    warning: Text = ""


class HospitalRecord(SummaryPart):
    """What a posterior over hospitals says of one quantity.

    Either a standard deviation between hospitals, in log odds, or a new hospital's rate of
    class 1 in the declared population, without the chance of patients.

    Attributes:
        of: The quantity's name.
        value: Its estimate.
        interval: Its 90 % interval.
        among: Between how many hospitals the deviation is; None for a rate.
        identified: False where the prior says it rather than the hospitals.
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

    Attributes:
        outcome: What was predicted; None in older files, where it always was a class.
        class_names: In the order of the classes; empty where they have only numbers.
        convergence: Of each site, or of the averaged chain; no table shows it.
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
    outcome: AnyOutcome | None = None
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
    convergence: tuple[ConvergenceRecord, ...] = ()
    warnings: tuple[Text, ...] = ()
    heterogeneity: Number = None
    feature_total_variation: Number = None

    @property
    def measures(self) -> Measures:
        """What its pages and tables show of the outcome."""
        return (self.outcome or Classification).measures

    @property
    def trained(self) -> list[SiteRecord]:
        """The sites of which the run has steps."""
        with_steps = {row.site for row in self.privacy if row.steps}
        return [site for site in self.sites if site.name in with_steps]

    @property
    def places(self) -> list[CalibrationRecord]:
        """The calibration rows that were measured on records: no means of rows."""
        return [row for row in self.calibration if row.over != "mean"]

    @property
    def epsilon_methods(self) -> str:
        """How the sites' epsilons were computed; empty where none was."""
        return ", ".join(sorted({row.epsilon_method for row in self.privacy} - {""}))

    def measured(self, site: str, predictor: str) -> CalibrationRecord | None:
        """Return the calibration row of a predictor at a place, if there is one."""
        for row in self.calibration:
            if (row.site, row.predictor) == (site, predictor):
                return row
        return None

    @property
    def recalibration_noise(self) -> str:
        """Why the recalibrated probabilities are not to be used; empty if nothing is against it."""
        return self.recalibration.noise if self.recalibration else ""


def parse_summary(summary: Mapping[str, object]) -> Summary:
    """Validate a summary as `summary.json` holds it; its texts become fit to be shown.

    Args:
        summary: Undefined numbers are None or NaN, infinite ones inf or "inf".

    Raises:
        ValueError: If a part is missing or of another type; it names the first one.
    """
    parts: dict[str, object] = {}
    for name, value in summary.items():
        clean = partial(printable, most=None if name == "warnings" else MAX_TEXT)
        if isinstance(value, list):
            # Of long lists, such as the rows of thousands of sites, one item at a time.
            parts[name] = map(clean, map(json_values, value))
        else:
            parts[name] = clean(json_values(value))
    return Summary.model_validate(parts)
