"""The file that makes a site: written by a hospital, or by a simulation for each virtual site."""

import math
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import tomli_w
from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, ValidationInfo

from fl_dpbayes.config.approvals import Digest
from fl_dpbayes.config.data import Shift
from fl_dpbayes.config.names import EvaluationRelease, GroupText, Role, SiteName
from fl_dpbayes.config.plan import Adjacency, Probability
from fl_dpbayes.config.sources import OfficialPart, Source
from fl_dpbayes.config.task import SitePrevalence, check_noised_estimate
from fl_dpbayes.config.validation_text import read_record, read_toml
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config, written

Count = PositiveInt | Literal["unlimited"]
PositiveOrInfinite = Annotated[float, Field(gt=0, allow_inf_nan=True)]


def _placed(path: Path, info: ValidationInfo) -> Path:
    folder: Path = info.context or Path()
    return folder / path


# A relative path starts at the site file's own folder, where a file is read.
PlacedPath = Annotated[Path, AfterValidator(_placed)]


class Selection(Config):
    """Which records of the source belong to the site; empty: all of the official part `part`."""

    part: OfficialPart = "train"
    indices: PlacedPath | None = None
    natural_site: str | None = None


class Split(Config):
    """Which shares of the units are kept for testing and for recalibration.

    A keyed hash of the unit chooses them; `key` is its key.
    """

    test_fraction: Annotated[float, Field(ge=0, le=1)] = 0.2
    recalibration_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32,128}$")]

    def _check_keys(self) -> None:
        test = self.test_fraction
        recalibration = self.recalibration_fraction
        if test + recalibration > 1:
            raise ValueError(
                f"test_fraction {test} + recalibration_fraction {recalibration} exceed 1: lower one"
            )


class LedgerSettings(Config):
    """Where the site keeps its ledger, for which cohort, and how much that cohort may ever spend.

    `witness` is the ledger's second place, a small file that knows its last entry: in another
    folder, best on another disk that no backup puts back together with the ledger. Both are made
    once, by `fl-dpbayes site ledger create`. `planned_runs`: how many runs of the first plan the
    cohort is declared for, for good. Together they are accounted as one plan, which costs less than
    one after the other. Another plan then runs only step by step in their place. `durability`:
    `full` survives a power cut, and keeps replies should the server's disk fail; `normal`, of
    simulations, survives the death of a process, and keeps a training reply until the server asks
    for more.
    """

    path: PlacedPath
    witness: PlacedPath
    cohort: Annotated[str, Field(min_length=1, max_length=200)]
    epsilon: PositiveOrInfinite
    delta: Probability
    adjacency: Adjacency = "add_or_remove_one"
    planned_runs: Annotated[int, Field(ge=1, le=100)] = 1
    durability: Literal["full", "normal"] = "full"


class Policy(Config):
    """What a site allows a request to ask for.

    `allow_non_private` lets a run train without privacy, where `max_run_epsilon` and the ledger's
    budget are infinite too: for simulation. `max_parameters` bounds the trained numbers of a model,
    times its weight draws, and those of its frozen body; of an own module, all that it has.
    `allow_downloads` lets a request name a frozen network whose weights torchvision fetches.
    `max_test_records_per_unit` caps what one patient can add to a noised evaluation table, or to
    the counts of isotonic recalibration; further records of that unit are left out of it.
    `allowed_code`: installed code beside this package that a request may name, with any settings:
    factories of own modules, `package.module:function`, and the kinds of samplers that installed
    packages register. `models`: the kinds that are allowed, all where it is left out. `max_samples`
    bounds the posterior samples of one run's plan.

    `expires`: the last day (UTC) on which requests are answered. `stop_file`: while there is such a
    file none is. `approved_plans`: digests of the plans that may run, beside those that `fl-dpbayes
    site approve` allowed; where it is left out, all that the other keys allow.

    `max_evaluations_per_run` and `max_evaluations` count in the ledger; the same request again
    counts once. `unlimited` does not count, for simulation. `groups`: attribute -> those of its
    values by which sums over test records may leave; all others are "other", and so is, of public
    sums, a subgroup of fewer than `least_group_units` units. With noised sums all named values
    leave in the same event, and k attributes make its noise sqrt(1 + k) times as large.
    """

    max_run_epsilon: PositiveOrInfinite
    allow_non_private: bool = False
    max_clip_norm: PositiveFloat = 1e6
    max_steps: PositiveInt = 20_000
    max_parameters: PositiveInt = 50_000_000
    allow_downloads: bool = False
    evaluation_release: EvaluationRelease = "none"
    min_evaluation_noise_multiplier: PositiveFloat = 1.0
    max_test_records_per_unit: PositiveInt = 1
    allowed_code: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=100)
    ] = ()
    models: tuple[Literal["logistic", "mlp", "cnn", "strided-cnn", "module"], ...] | None = None
    max_samples: PositiveInt = 10_000
    expires: date | None = None
    stop_file: PlacedPath | None = None
    approved_plans: tuple[Digest, ...] | None = None
    max_evaluations_per_run: Count = 20
    max_evaluations: Count = 200
    groups: dict[GroupText, Annotated[tuple[GroupText, ...], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    least_group_units: PositiveInt = 10

    @property
    def counts_evaluations(self) -> bool:
        """Whether the ledger counts them."""
        return not self.max_evaluations_per_run == self.max_evaluations == "unlimited"


class Connection(Config):
    """How a site's node reaches the coordinator, for `fl-dpbayes site start`.

    A simulation has none.

    `superlink`: the coordinator's host:port. `ca`: the certificate that its server's is checked
    against. `key`: the node's own private key, made by `fl-dpbayes site keys`. The process that
    holds the key listens on `port` of this machine only; another process, best of another user,
    runs the app (`fl-dpbayes site app`) and proves by `secret` that it may. `bundles`: SHA-256 of
    app bundles that may run, beside those approved by `fl-dpbayes site approve`.
    """

    superlink: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9.\-]{1,253}:[0-9]{1,5}$", description="host:port")
    ]
    ca: PlacedPath = Path("ca.crt")
    key: PlacedPath = Path("node.key")
    port: Annotated[int, Field(ge=1, le=65535)] = 9094
    secret: PlacedPath = Path("node.secret")
    bundles: Annotated[tuple[Digest, ...], Field(max_length=100)] = ()


class SiteFile(Config):
    """Everything that makes a site. Paths are relative to the file's own folder.

    `units` is n, the number of privacy units in the training part (at a held-out or shifted site:
    in all of it). It is a public constant that the site declares, never counted from its data when
    a message comes. `insecure_seed` makes noise and sampling repeatable, for simulation and tests
    only; what is released is then not private, and says so. `cache_folder` holds features of
    records, as confidential as these; `backbone_folder` holds the weight files that a request may
    name by their SHA-256. `trace_folder`, where given, gets a table `<run>-<round>.csv` of each
    training round: log posterior and clipped share along the chain. These are computed without
    noise, and never sent. `prevalence` declares the shares of the classes here, which are then
    public, or is `estimated`: from predictions, at the site, and never sent. `snapshot`: the file
    that `fl-dpbayes site check` writes and requests read in place of the source; one that changed
    since is refused until it is checked again (with a connection by default).
    """

    name: SiteName
    role: Role
    source: Source
    selection: Selection = Selection()
    units: Annotated[int, Field(ge=0)]
    split: Split
    shift: Shift | None = None
    shift_seed: Annotated[int, Field(ge=0)] = 0
    ledger: LedgerSettings | None = None
    policy: Policy
    threads: PositiveInt = 1
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    insecure_seed: int | None = None
    cache_folder: PlacedPath = Path("cache")
    backbone_folder: PlacedPath | None = None
    trace_folder: PlacedPath | None = None
    prevalence: SitePrevalence | None = None
    snapshot: PlacedPath | None = None
    connection: Connection | None = None

    @property
    def records_file(self) -> Path | None:
        """Where requests find checked records; a site with a connection reads nothing else."""
        if self.snapshot is not None or self.connection is None:
            return self.snapshot
        folder = self.cache_folder if self.ledger is None else self.ledger.path.parent
        return folder / f"{self.name}.records.npz"

    def _check_keys(self) -> None:
        budgets = {"policy.max_run_epsilon": self.policy.max_run_epsilon}
        if self.ledger is not None:
            budgets["ledger.epsilon"] = self.ledger.epsilon
        for key, epsilon in budgets.items():
            if math.isinf(epsilon) and not self.policy.allow_non_private:
                raise ValueError(
                    f"{key} is infinite: give a budget; only policy.allow_non_private "
                    "goes without one"
                )
        is_public = self.policy.evaluation_release == "public"
        if is_public and self.policy.counts_evaluations and self.ledger is None:
            raise ValueError(
                "policy.evaluation_release is 'public': evaluations are counted in a "
                "ledger, name one"
            )
        check_noised_estimate("prevalence", self.prevalence, self.policy.evaluation_release)


def read_site_file(path: Path) -> SiteFile:
    """Read and validate a site file; relative paths in it are resolved against its folder.

    Raises:
        UserError: The file is absent, not TOML, or a key is unknown, missing or out of range.
    """
    folder = path.resolve().parent
    content = read_toml(path, "site file")
    site_file = read_record(SiteFile, content, origin=f"site file {path}", folder=folder)
    source = site_file.source.with_place(lambda place: folder / place)
    return site_file.model_copy(update={"source": source})


def read_own_site_file(path: Path) -> SiteFile:
    """Read the site file of a hospital, not of a simulation.

    Its constants must be known without the records.

    Raises:
        UserError: As for `read_site_file`, or the constants were taken from the records.
    """
    site_file = read_site_file(path)
    if site_file.source.looked_at:
        problem = (
            f"site file {path}: source.constants is 'from_records': what is computed from "
            "patients is a release"
        )
        remedy = (
            "replace centers, scales, missing and categories by values known without these records"
        )
        raise UserError(f"{problem}: {remedy}, then set constants = 'public'")
    return site_file


def write_site_file(site_file: SiteFile, path: Path) -> None:
    """Write a site file as TOML."""
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = site_file.model_dump(mode="json", exclude_none=True)
        path.write_text(tomli_w.dumps(content), encoding="utf-8")
