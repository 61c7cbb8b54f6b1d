"""What a scenario or a site file says about records: source, partition, shift."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from fl_dpbayes.config.names import EvaluationRelease, Role, SiteName
from fl_dpbayes.config.sources import OfficialPart, Source
from fl_dpbayes.config.task import SitePrevalence, TrainedPrevalence, check_noised_estimate
from fl_dpbayes.files import LEFT_OUT, Config

Severity = Annotated[int, Field(ge=1, le=5)]
ImageShift = Literal[
    "gamma",
    "gamma_dark",
    "contrast",
    "exposure",
    "detector_noise",
    "blur",
    "resolution",
    "inversion",
    "border",
    "marker",
    "bias_field",
    "rotation",
]
ShiftKind = Literal[
    ImageShift,
    "prevalence",
    "tilt",
    "missing_features",
    "label_flip",
    "under_reporting",
    "boundary_flip",
]


class IIDPartition(Config):
    """Records are dealt at random into equal shares."""

    kind: Literal["iid"] = "iid"


class DirichletPartition(Config):
    """Label skew: each class is divided over the sites by Dirichlet(alpha) proportions."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[float, Field(gt=0)]
    min_records: PositiveInt = 20


class ClassesPartition(Config):
    """Each site holds records of `classes_per_site` classes only."""

    kind: Literal["classes"] = "classes"
    classes_per_site: PositiveInt


class QuantityPartition(Config):
    """Quantity skew: site sizes are proportional to Dirichlet(alpha) weights, labels are mixed."""

    kind: Literal["quantity"] = "quantity"
    alpha: Annotated[float, Field(gt=0)]
    min_records: PositiveInt = 20


class FeaturePartition(Config):
    """Feature skew: sites of equal size along one score of the records, blurred by noise.

        (1 - strictness) noise + strictness score, both of unit variance

    The score is an image's mean pixel, or a table's column `feature`. At strictness 0 sites are
    alike, at 1 in order.
    """

    kind: Literal["feature"] = "feature"
    strictness: Annotated[float, Field(ge=0, le=1)]
    feature: Annotated[str, Field(min_length=1, max_length=60)] | None = None


class NaturalPartition(Config):
    """Each record stays with the site that collected it; site names are those of the data set."""

    kind: Literal["natural"] = "natural"


Partition = Annotated[
    IIDPartition
    | DirichletPartition
    | ClassesPartition
    | QuantityPartition
    | FeaturePartition
    | NaturalPartition,
    Field(discriminator="kind"),
]


class Shift(Config):
    """A change of acquisition, population or annotation at one site, of severity 1 to 5.

    `feature` names the column that a shift of kind `tilt` weighs records by; no other kind takes
    it. Privacy is that of the records as shifted: which ones a shift keeps or relabels may depend
    on the others, so it is for simulations.
    """

    kind: ShiftKind
    severity: Severity = 3
    feature: Annotated[str, Field(min_length=1, max_length=60)] | None = None

    def _check_keys(self) -> None:
        if self.kind == "tilt" and self.feature is None:
            raise ValueError(
                "kind 'tilt' needs the key feature: name the column to tilt by, for example 'age'"
            )
        if self.kind != "tilt" and self.feature is not None:
            raise ValueError(f"feature is for kind 'tilt': remove it for kind {self.kind!r}")


class DataSpec(Config):
    """Where a scenario's records come from.

    `source = "digits"` is short for `source = {kind = "digits"}`.

    A relative path in a source starts at the folder of the scenario's file. `test_fraction` is the
    share of each training site's units that is kept for testing. `records`: use only that many
    records of the part `train`, drawn by the scenario's seed in whole units. `prevalence` declares
    the shares of the classes among the training records, public by declaration, for sites that
    declare their own. `allow_shared_units`: units, such as patients, may stand at several natural
    sites, which is refused otherwise; each of these spends an epsilon of its own on such a unit.
    """

    source: Annotated[
        Source, BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value)
    ]
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    records: PositiveInt | None = None
    prevalence: TrainedPrevalence | None = None
    # A key that came later: where it is not set, digests are as before it came.
    allow_shared_units: Annotated[bool, Field(exclude_if=lambda value: not value)] = False


class SiteSpec(Config):
    """One site of a scenario: its role, its records and how they differ from the other sites'.

    Training sites share out the records of the official part `train` among them. A held-out or
    shifted site has `records` records of `part` set aside for it; without `records` it has all of
    that part. With `records_of` it holds the records of the held-out or shifted site of that name
    and shares its draws, so that shifts can be compared in pairs on the same patients. `epsilon` is
    what a training site's cohort may ever spend, where that differs from the other sites'.
    `prevalence` declares the shares of the classes here, public by declaration, or lets the site
    estimate them; its predictions are then also measured corrected for them. Nothing checks it
    against records. `group`: where `[hierarchical]` has a level above the hospitals, which one it
    is of.
    """

    role: Role
    part: OfficialPart = "train"
    records: PositiveInt | None = None
    records_of: SiteName | None = None
    shift: Shift | None = None
    epsilon: PositiveFloat | None = None
    prevalence: SitePrevalence | None = None
    group: Annotated[SiteName | None, LEFT_OUT] = None

    def _check_keys(self) -> None:
        if self.role == "train":
            self._check_training_keys()
        elif self.epsilon is not None:
            raise ValueError(
                f"epsilon is {self.epsilon:g}: it is the budget of a training site, remove it here"
            )
        if self.records_of is not None and (self.records is not None or self.part != "train"):
            raise ValueError(
                "records_of already says which records the site holds: remove records "
                "and part, or it"
            )

    def _check_training_keys(self) -> None:
        key = None
        if self.part != "train":
            key = "part"
        elif self.records is not None:
            key = "records"
        elif self.records_of is not None:
            key = "records_of"
        if key is not None:
            raise ValueError(
                f"{key} is {getattr(self, key)!r}: it is for held_out and shifted sites, "
                "remove it here"
            )


def check_shared_records(sites: Mapping[str, SiteSpec]) -> None:
    """Check that every `records_of` names a held-out or shifted site with records of its own.

    Args:
        sites: Name -> site, of a scenario.

    Raises:
        ValueError: If one does not.
    """
    owners = [
        name for name, spec in sites.items() if spec.role != "train" and spec.records_of is None
    ]
    for name, spec in sites.items():
        if spec.records_of is None or spec.records_of in owners:
            continue
        reason = _why_no_owner(sites.get(spec.records_of))
        remedy = "give the site records of its own"
        if owners:
            remedy = f"name one of {', '.join(owners)}"
        raise ValueError(f"sites.{name}.records_of is {spec.records_of!r}, but {reason}: {remedy}")


def _why_no_owner(site: SiteSpec | None) -> str:
    if site is None:
        return "there is no such site"
    if site.role == "train":
        return "that is a training site, whose records the model has seen"
    return f"that site has records of another one itself ({site.records_of!r})"


def with_part_of_owner(sites: Mapping[str, SiteSpec]) -> dict[str, SiteSpec]:
    """Give each site that shares records the official part from which these come.

    Args:
        sites: Name -> site, of a scenario.

    Returns:
        The sites in their order.
    """
    located = dict(sites)
    for name, spec in sites.items():
        if spec.records_of is not None:
            part = sites[spec.records_of].part
            located[name] = spec.model_copy(update={"part": part})
    return located


def roles_sharing_records(sites: Mapping[str, SiteSpec]) -> frozenset[Role]:
    """Return the roles in which two sites hold the same records.

    Pooling such sites would count patients twice.

    Args:
        sites: Name -> site, of a scenario.
    """
    holders = Counter((spec.role, spec.records_of or name) for name, spec in sites.items())
    return frozenset(role for (role, _), count in holders.items() if count > 1)


def check_prevalences(
    data: DataSpec, sites: Mapping[str, SiteSpec], release: EvaluationRelease
) -> None:
    """Check the prevalences that a scenario declares, as far as it goes without its records.

    Args:
        data: Declares training's.
        sites: Name -> site, which may declare its own.
        release: How evaluations leave a site.

    Raises:
        ValueError: If a site declares one and training does not, or a site would estimate one where
            results leave with noise.
    """
    for name, site in sites.items():
        if site.prevalence is not None and data.prevalence is None:
            raise ValueError(
                f"sites.{name}.prevalence is given, data.prevalence is not: declare "
                "there training's"
            )
        check_noised_estimate(f"sites.{name}.prevalence", site.prevalence, release)
