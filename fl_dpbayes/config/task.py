"""What is predicted from what, and by which model on which features.

All of them are public constants, so they cost no privacy.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BeforeValidator, Field, model_serializer, model_validator

from fl_dpbayes.config.accepting import Accepting, Keys, default
from fl_dpbayes.config.names import EvaluationRelease
from fl_dpbayes.config.outcome import AnyOutcome, Classification, as_classification
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config, canonical_json

Width = Annotated[int, Field(gt=0, le=8192)]
# Of which torchvision's vision transformer has one position for each patch.
VIT_IMAGE_SIZE = 224


class Task(Config):
    """Records of shape `input_shape`, and the outcome that is predicted of them.

    A classification is written by `classes` alone, as all tasks were before there were kinds of
    outcomes: files, messages and their digests stay as they are.
    """

    input_shape: Annotated[
        tuple[Annotated[int, Field(gt=0, le=4096)], ...], Field(min_length=1, max_length=3)
    ]
    outcome: AnyOutcome

    @model_validator(mode="before")
    @classmethod
    def _read_classes(cls, keys: Any) -> Any:
        if not isinstance(keys, dict) or "classes" not in keys:
            return keys
        other_keys = {name: value for name, value in keys.items() if name != "classes"}
        return {**other_keys, "outcome": {"kind": "classification", "classes": keys["classes"]}}

    @model_serializer(mode="wrap")
    def _write_classes(self, serialize: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        keys = serialize(self)
        if isinstance(self.outcome, Classification):
            del keys["outcome"]
            keys["classes"] = self.outcome.classes
        return keys


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(
            f"{value[:60]!r} is no SHA-256: give 64 lower-case hexadecimal digits (sha256sum FILE)"
        )
    return value


WeightsDigest = Annotated[str, AfterValidator(_sha256)]


class StrokeProjection(Config):
    """A projection on the `dimensions` that best tell made-up characters apart.

    There are `characters` of them, each drawn `copies` times. It is for square grey pictures of
    handwriting and the like. No record enters, so the map is public.
    """

    kind: Literal["strokes"] = "strokes"
    dimensions: Annotated[int, Field(ge=1, le=600)] = 200
    characters: Annotated[int, Field(ge=200, le=5000)] = 3000
    copies: Annotated[int, Field(ge=2, le=8)] = 4
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class ScatteringFeatures(Config):
    """Scattering coefficients of orders 0 to 2: `scales` octaves, `angles` orientations.

    The coefficients are fixed: none is learned.
    """

    kind: Literal["scattering"] = "scattering"
    scales: Annotated[int, Field(ge=1, le=5)] = 2
    angles: Literal[4, 8, 12, 16] = 8
    projection: StrokeProjection | None = None


class BackboneFeatures(Config):
    """What a frozen torchvision network computes before its last layer.

    Images are resized to a square of `image_size` pixels a side, 224 for `vit_b_16`. `weights` is
    the SHA-256 of a weight file, which each site looks for in its own `backbone_folder`; null means
    torchvision's own download. The weights must come from public data: those learned from patients
    would cost privacy.
    """

    kind: Literal["backbone"] = "backbone"
    architecture: Literal[
        "resnet18", "resnet50", "efficientnet_b0", "efficientnet_b1", "vit_b_16"
    ] = "efficientnet_b1"
    weights: WeightsDigest | None = None
    image_size: Annotated[int, Field(ge=32, le=512)] = 224

    def _check_keys(self) -> None:
        if self.architecture == "vit_b_16" and self.image_size != VIT_IMAGE_SIZE:
            raise ValueError(
                f"image_size is {self.image_size}: vit_b_16 takes images of {VIT_IMAGE_SIZE} "
                "pixels a side alone"
            )


class FrozenBody(Config):
    """All layers of a network before its last, held at public values.

    The sites train and release the last layer alone. The values are the random ones of `seed`, or
    those of the file whose SHA-256 is `weights`, in each site's `backbone_folder`. They must be
    public, or released and paid for. Privacy does not rest on them.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    weights: WeightsDigest | None = None

    def _check_keys(self) -> None:
        if self.weights is not None and self.seed != 0:
            raise ValueError("seed and weights both give the body's values: give one of them")


Row = Annotated[tuple[float, ...], Field(min_length=1, max_length=200)]


class StandardFeatures(Config):
    """A table's values by a declared geometry: `spread` (x - centers) / scales, or whitened.

    Images have one center and scale for each channel. Equal clipping of all directions costs a
    private model least. `source` says where the constants come from: they must be public, and the
    sites' own records are not. A public `covariance` of the values x takes the place of `scales`:
    the values are then whitened by it.
    """

    kind: Literal["standard"] = "standard"
    centers: Row
    scales: tuple[Annotated[float, Field(gt=0)], ...] = ()
    covariance: Annotated[tuple[Row, ...], Field(max_length=200)] = ()
    spread: Annotated[float, Field(gt=0, le=100)] = 1.0
    source: Annotated[str, Field(min_length=10, max_length=500)]

    def _check_keys(self) -> None:
        if bool(self.scales) == bool(self.covariance):
            raise ValueError(
                "scales and covariance are two ways to scale: give exactly one of them"
            )
        size = len(self.centers)
        lengths = {len(self.scales or self.covariance), *map(len, self.covariance)}
        if lengths != {size}:
            raise ValueError(
                f"scales or covariance is not of {size} values, or rows of as many: as "
                "many as centers"
            )
        covariance = np.array(self.covariance or [[1.0]])
        is_symmetric = np.array_equal(covariance, covariance.T)
        if not is_symmetric or np.linalg.eigvalsh(covariance)[0] <= 0:
            raise ValueError("covariance is none: give a symmetric, positive definite matrix")

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """What centred values are multiplied by."""
        if self.scales:
            return np.diag(self.spread / np.array(self.scales))
        return np.asarray(self.spread * np.linalg.inv(np.linalg.cholesky(self.covariance)).T)


def _absent(reason: str) -> BeforeValidator:
    def check(value: Any) -> None:
        if value is not None:
            raise ValueError(reason)

    return BeforeValidator(check)


Features = Annotated[
    ScatteringFeatures | BackboneFeatures | StandardFeatures, Field(discriminator="kind")
]


Hidden = Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)]
Channels = Annotated[tuple[Width, ...], Field(min_length=1, max_length=4)]
Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=100)
]


class LogisticModel(Config):
    """Multinomial logistic regression on the flattened record, or on fixed features of it."""

    kind: Literal["logistic"] = "logistic"
    features: Accepting[Features | None, Keys] = default(None)
    frozen_body: Annotated[
        None, _absent("model.kind 'logistic' has none: remove it, or choose 'mlp' or 'cnn'")
    ] = None


class MLPModel(Config):
    """Fully connected layers with ReLU between them.

    Their input is the flattened record, or fixed features of it.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: Accepting[Hidden, Sequence[int]] = default((64,))
    features: Accepting[Features | None, Keys] = default(None)
    frozen_body: Accepting[FrozenBody | None, Keys] = default(None)


class CNNModel(Config):
    """Blocks of convolution, ReLU and 2x2 average pooling, then one hidden dense layer."""

    kind: Literal["cnn"] = "cnn"
    channels: Accepting[Channels, Sequence[int]] = default((16, 32))
    kernel_size: Literal[3, 5] = 3
    hidden: Width = 64
    features: Annotated[
        None, _absent("model.kind 'cnn' takes none: remove it, or choose 'logistic' or 'mlp'")
    ] = None
    frozen_body: Accepting[FrozenBody | None, Keys] = default(None)


def _pixels_only(value: Any) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", "standard")
    if value is not None and kind != "standard":
        raise ValueError(
            "model.kind 'strided-cnn' sees pixels: remove it, or choose features.kind 'standard' "
            "with one center and scale for each channel"
        )
    return value


class StridedCNNModel(Config):
    """The usual CNN of private learning on MNIST, for images of at least 16 x 16 pixels.

    It has 16 filters of 8 x 8 and 32 of 4 x 4, in strides of 2, each with 2 x 2 max pooling in
    strides of 1, and a dense layer of 32. Papernot et al. 2021 use it with `tanh`; the examples of
    TensorFlow Privacy and Opacus with `relu`.
    """

    kind: Literal["strided-cnn"] = "strided-cnn"
    activation: Literal["relu", "tanh"] = "tanh"
    features: Annotated[Accepting[StandardFeatures | None, Keys], BeforeValidator(_pixels_only)] = (
        default(None)
    )
    frozen_body: Annotated[
        None, _absent("model.kind 'strided-cnn' has none: remove it, or choose 'mlp' or 'cnn'")
    ] = None


# What an own module's name begins with where it is an object of the process that runs it.
PROVIDED = "object:"
MAX_SETTINGS = 256
MAX_SETTINGS_DEPTH = 4
MAX_SETTINGS_TEXT = 1000


def _number_of_values(key: str, value: Any, depth: int) -> int:
    """Count a setting's values, its tables and lists among them; refuse what is too large."""
    if isinstance(value, dict | list):
        if depth > MAX_SETTINGS_DEPTH:
            raise ValueError(
                f"{key[:60]!r} lies more than {MAX_SETTINGS_DEPTH} tables or lists deep: flatten it"
            )
        items = value.items() if isinstance(value, dict) else ((key, item) for item in value)
        return 1 + sum(_number_of_values(str(name), item, depth + 1) for name, item in items)
    is_number = isinstance(value, int | float) and abs(value) < 2**63
    is_text = isinstance(value, str) and len(value) <= MAX_SETTINGS_TEXT
    if not (is_number or is_text) or len(key) > 100:
        problem = (
            f"{key[:60]!r} is no number, true, false or text of up to "
            f"{MAX_SETTINGS_TEXT} characters"
        )
        raise ValueError(
            f"{problem}, by a name of up to 100: give one, or lists and tables of them"
        )
    return 1


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    count = _number_of_values("settings", settings, 0)
    if count > MAX_SETTINGS:
        raise ValueError(f"settings hold {count} values: give at most {MAX_SETTINGS}")
    return settings


def _factory(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*:\w+(\.\w+)*", value) or len(value) > 200:
        raise ValueError(
            f"{value[:60]!r} names no factory: write 'package.module:function', in up to "
            "200 characters"
        )
    return value


class ModuleModel(Config):
    """A torch module of one's own: records (N, *shape) -> logits (N, classes).

    The logits of a record must not depend on other records. `factory`: `package.module:function` of
    an installed package, called with `settings`; it returns the module. A hospital's site imports
    it only if its policy lists it. `trainable`: patterns of parameter names, as `head.*`; empty:
    all that require a gradient. Everything else is a public constant: what the factory makes at
    `seed`, or the file in `backbone_folder` whose SHA-256 is `weights`, which may hold all
    parameters and buffers by name, or some.
    """

    kind: Literal["module"] = "module"
    factory: Annotated[str, AfterValidator(_factory)]
    settings: Annotated[dict[str, Any], AfterValidator(_check_settings)] = Field(
        default_factory=dict
    )
    trainable: Accepting[Patterns, Sequence[str]] = default(())
    weights: WeightsDigest | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    features: Accepting[Features | None, Keys] = default(None)
    frozen_body: Annotated[
        None, _absent("model.kind 'module' has none: name the trained part by trainable")
    ] = None

    def __hash__(self) -> int:
        """Hash the settings by what is in them."""
        return hash(canonical_json(self))


Model = Annotated[
    LogisticModel | MLPModel | CNNModel | StridedCNNModel | ModuleModel,
    Field(discriminator="kind"),
]


MAX_DEVIATION = 1e-6
# A correction divides by it: by one near 0 it would overflow for some records, and the failure
# would tell of them.
SMALLEST_TRAINED = 1e-9


def _sum_to_one(shares: tuple[float, ...]) -> tuple[float, ...]:
    if abs(math.fsum(shares) - 1) > MAX_DEVIATION:
        raise ValueError(
            f"the shares of the classes sum to {math.fsum(shares):.6g}: they must sum to 1"
        )
    return shares


def _above_zero(shares: tuple[float, ...]) -> tuple[float, ...]:
    if min(shares) < SMALLEST_TRAINED:
        raise ValueError(
            f"a class has share {min(shares):g}: one that is trained on has "
            f"{SMALLEST_TRAINED:g} or more"
        )
    return shares


Prevalence = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1)], ...],
    Field(min_length=2, max_length=1000),
    AfterValidator(_sum_to_one),
]
TrainedPrevalence = Annotated[Prevalence, AfterValidator(_above_zero)]
# `estimated`: by the site, from its own predictions, and kept there.
SitePrevalence = Literal["estimated"] | Prevalence


def check_noised_estimate(
    key: str, prevalence: SitePrevalence | None, release: EvaluationRelease
) -> None:
    """Refuse an estimated prevalence where results leave with noise.

    An estimate moves every record's prediction by all the others'. The noise covers what one unit
    adds to the sums itself, not what it does to the others' predictions.

    Args:
        key: Name of the key, for the error.
        prevalence: Shares of the classes, `estimated`, or None.
        release: How results leave the site.

    Raises:
        ValueError: It is an estimate, and the release is `noised`.
    """
    if prevalence == "estimated" and release == "noised":
        raise ValueError(
            f"{key} is 'estimated', which the noise of release 'noised' does not cover: "
            "declare numbers"
        )


def check_prevalence(
    key: str, prevalence: Prevalence | SitePrevalence | None, outcome: AnyOutcome
) -> None:
    """Check that a declared prevalence has one share for each class of the records.

    Args:
        key: Name of the key, for the error.
        prevalence: Shares of the classes, `estimated`, or None.
        outcome: Of the records.

    Raises:
        UserError: The records have no classes, or another number of them.
    """
    if prevalence is None:
        return
    classification = as_classification(outcome, key)
    if isinstance(prevalence, tuple) and not classification.is_prevalence(prevalence):
        raise UserError(
            f"{key} has {len(prevalence)} shares, the records have {outcome.description}: give "
            "one for each"
        )
