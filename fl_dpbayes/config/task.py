"""What is predicted from what, and by which model: public constants of a federation."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.features import Features, FrozenBody

Width = Annotated[int, Field(gt=0, le=8192)]


class Task(Config):
    """A classification task: records of shape `input_shape`, labels 0 .. classes - 1."""

    input_shape: Annotated[tuple[Annotated[int, Field(gt=0, le=4096)], ...], Field(min_length=1, max_length=3)]
    classes: Annotated[int, Field(ge=2, le=1000)]


class LogisticModel(Config):
    """Multinomial logistic regression on the flattened record, or on fixed features of it."""

    kind: Literal["logistic"] = "logistic"
    features: Features | None = None
    frozen_body: None = None

    @field_validator("frozen_body", mode="before")
    @classmethod
    def _no_body(cls, value: Any) -> None:
        if value is not None:
            raise ValueError(
                "it needs layers before the last, and model.kind 'logistic' has none: choose model.kind 'mlp' or "
                "'cnn', or leave it out"
            )


class MLPModel(Config):
    """Fully connected layers with ReLU between them, on the flattened record, or on fixed features of it."""

    kind: Literal["mlp"] = "mlp"
    hidden: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)] = (64,)
    features: Features | None = None
    frozen_body: FrozenBody | None = None


class CNNModel(Config):
    """Blocks of convolution, ReLU and 2x2 average pooling, then one hidden dense layer."""

    kind: Literal["cnn"] = "cnn"
    channels: Annotated[tuple[Width, ...], Field(min_length=1, max_length=4)] = (16, 32)
    kernel_size: Literal[3, 5] = 3
    hidden: Width = 64
    features: None = None
    frozen_body: FrozenBody | None = None

    @field_validator("features", mode="before")
    @classmethod
    def _no_features(cls, value: Any) -> None:
        if value is not None:
            raise ValueError("model.kind 'cnn' takes none: remove it, or choose model.kind 'logistic' or 'mlp'")


Model = Annotated[LogisticModel | MLPModel | CNNModel, Field(discriminator="kind")]
