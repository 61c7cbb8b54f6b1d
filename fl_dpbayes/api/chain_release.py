"""What a private chain releases: samples, their cost, and the file in which both are kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import nn

from fl_dpbayes.api.labelled_records import Loadable, Values, feature_array
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config, check_values, replaced_atomically
from fl_dpbayes.models import parameters
from fl_dpbayes.posterior import PosteriorSamples, chains_to_arviz, predict
from fl_dpbayes.protocol import Arrays, prefixed, without_prefix

SAMPLES = "samples"
LAST = "last"
METADATA = "fl_dpbayes_chain"
# As Flower's MetricRecord takes them.
MetricValues: TypeAlias = dict[str, int | float | list[int] | list[float]]
# Of a budget; below it a person wants to know why not more was spent.
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class ChainPrivacy:
    """What the steps of a chain have cost so far.

    Attributes:
        epsilon: Of the steps until now, by their privacy-loss distribution; it holds if the number
            of steps was fixed beforehand.
        epsilon_planned: Of the whole plan, which holds whoever stops it, and when.
        budget: What the plan was allowed to cost.
        delta: In (0, 1).
        noise_multipliers: Least and greatest sigma_t, the noise on the sum over the clip norm.
        steps: Number of steps until now.
        units: Number n of privacy units, taken to be public.
    """

    epsilon: float
    epsilon_planned: float
    budget: float
    delta: float
    noise_multipliers: tuple[float, float]
    steps: int
    units: int

    def __repr__(self) -> str:
        text = (
            f"epsilon {self.epsilon:.3g} at delta {self.delta:g}, after {self.steps} steps on "
            f"{self.units} units"
        )
        if self.epsilon_planned > self.epsilon:
            text += f"; the whole plan costs {self.epsilon_planned:.3g}"
        if self.epsilon_planned < NEARLY_ALL * self.budget:
            text += (
                f"; the budget of {self.budget:g} is not used up, as temperature or "
                "noise_multiplier ask for more noise"
            )
        return text


class ChainFile(Config):
    """What a file of a release says beside its arrays."""

    format: Literal[1] = 1
    temperature: float
    step_size: float
    privacy: ChainPrivacy


@dataclass(frozen=True, repr=False)
class ChainRelease:
    """What a stretch of a private chain leaves, which may be published at the cost of `privacy`.

    Attributes:
        samples: Posterior samples that the plan keeps of this stretch, parameter name ->
            (M, *shape); M may be 0. `samples[i]` is one as a module's `load_state_dict` takes it.
        last: The last state, parameter name -> float32 array.
        temperature: Mean of T_t over the stretch, weighted by step size; 1 is the posterior, 0
            says that the sampler has none.
        step_size: Of the last step.
        privacy: What the chain has cost so far.
        module: The module whose parameters were sampled.
    """

    samples: PosteriorSamples
    last: Arrays
    temperature: float
    step_size: float
    privacy: ChainPrivacy
    module: nn.Module

    @property
    def metrics(self) -> MetricValues:
        """The public and accounted numbers that a reply carries in its MetricRecord."""
        return {
            "num-examples": self.privacy.units,
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "epsilon-planned": self.privacy.epsilon_planned,
            "steps": self.privacy.steps,
            "temperature": self.temperature,
            "step-size": self.step_size,
        }

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return self.samples[number]

    def __repr__(self) -> str:
        return f"{self.samples!r} at temperature {self.temperature:.3g}; {self.privacy!r}"

    def predict_proba(self, features: Values | Loadable) -> npt.NDArray[np.float64]:
        """Average the class probabilities of the stretch's samples.

        With coupling "constant" the samples are averaged as in DP-SGD: how far they spread follows
        the privacy noise and is not the posterior's uncertainty.

        Args:
            features: N records, (N, *shape), or a data set of (features, label).

        Returns:
            Class probabilities, (N, classes).

        Raises:
            UserError: If the stretch kept no sample.
        """
        self._check_not_empty()
        return predict_proba(self.module, self.samples, features)

    def to_arviz(self) -> Any:
        """Return the samples as ArviZ takes them, as one chain.

        With coupling "constant" their spread follows the privacy noise and is not the posterior's
        uncertainty.

        Raises:
            UserError: If the stretch kept no sample, or ArviZ is not installed.
        """
        self._check_not_empty()
        return chains_to_arviz({"chain": self.samples})

    def save(self, path: Path | str) -> None:
        """Write samples, last state and their cost into one file, without the module.

        Args:
            path: Of the file, `chain.safetensors`; one that is there is replaced.

        Raises:
            UserError: If it cannot be written.
        """
        arrays = {
            **prefixed(SAMPLES, self.samples.arrays),
            **prefixed(LAST, self.last),
            "weights": self.samples.weights,
            "temperatures": self.samples.temperatures,
        }
        content = ChainFile(
            temperature=self.temperature, step_size=self.step_size, privacy=self.privacy
        )
        whole_arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        with replaced_atomically(Path(path)) as partial:
            save_file(whole_arrays, partial, {METADATA: content.model_dump_json()})

    @classmethod
    def load(cls, path: Path | str, module: nn.Module) -> "ChainRelease":
        """Read a file of `save`, in which no code can be.

        Args:
            path: Of the file.
            module: The module whose parameters were sampled; its trained values do not matter.

        Returns:
            The release.

        Raises:
            UserError: If the file is absent, no such file, or of another module.
        """
        try:
            with safe_open(Path(path), framework="numpy") as file:
                content = ChainFile.model_validate_json((file.metadata() or {}).get(METADATA, ""))
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for name, array in arrays.items():
                check_values(name, array)
            samples = PosteriorSamples(
                arrays=without_prefix(SAMPLES, arrays),
                weights=arrays["weights"],
                temperatures=arrays["temperatures"],
            )
        except (OSError, SafetensorError, ValidationError, KeyError, ValueError) as error:
            reason = "absent" if isinstance(error, FileNotFoundError) else type(error).__name__
            raise UserError(
                f"{path} is no file that a release's save wrote ({reason}): give one"
            ) from None
        last = without_prefix(LAST, arrays)
        shapes = parameters.parameter_shapes(module)
        stored_shapes = {name: array.shape[1:] for name, array in samples.arrays.items()}
        last_shapes = {name: array.shape for name, array in last.items()}
        if not shapes == stored_shapes == last_shapes:
            raise UserError(
                f"{path} holds samples of {_described(stored_shapes)}, and the module's trained "
                f"parameters are {_described(shapes)}: give the module that was sampled"
            )
        return cls(
            samples=samples,
            last=last,
            temperature=content.temperature,
            step_size=content.step_size,
            privacy=content.privacy,
            module=module,
        )

    def _check_not_empty(self) -> None:
        if not len(self.samples):
            raise UserError("this stretch kept no posterior sample: lower burn_in or thinning")


def predict_proba(
    module: nn.Module, samples: PosteriorSamples, features: Values | Loadable
) -> npt.NDArray[np.float64]:
    """Average a module's class probabilities over posterior samples.

    Args:
        module: The module, (N, *shape) -> logits (N, classes).
        samples: Samples of its parameters.
        features: N records, (N, *shape), or a data set of (features, label).

    Returns:
        Class probabilities, (N, classes).
    """
    rows = feature_array(features).astype(np.float32)
    device = next(module.parameters()).device
    return predict(module, samples.arrays, samples.weights, rows, device=device).probabilities


def _described(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
