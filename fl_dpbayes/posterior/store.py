"""The stored posterior of a run: one safetensors file, which holds no code."""

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open

from fl_dpbayes.config import PROVIDED, Model, ModuleModel, RecalibrationMap, Task, parameter_count
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config, check_values, replaced_atomically
from fl_dpbayes.models import given_object, model_shapes
from fl_dpbayes.posterior.sample_file import SAMPLES, TYPE_NAMES, check_seal, write_samples
from fl_dpbayes.posterior.samples import AnySamples, PosteriorSamples
from fl_dpbayes.protocol import prefixed, without_prefix

POSTERIOR_FILE = "posterior.safetensors"
_KEY = "fl_dpbayes"


class PosteriorMetadata(Config):
    """What a posterior file says of itself.

    Attributes:
        format: Version of the file.
        model: Whose parameters the samples are.
        task: Of the model.
        scenario_hash: Digest of the resolved scenario.
        recalibration: The map that was fitted to its predictions, if any.
    """

    format: Literal[2] = 2
    model: Model
    task: Task
    scenario_hash: Annotated[str, Field(max_length=128)]
    recalibration: RecalibrationMap | None = None

    @model_validator(mode="after")
    def _recalibration_fits(self) -> "PosteriorMetadata":
        mapping = self.recalibration
        if mapping is None:
            return self
        if len(mapping.parameters) != parameter_count(mapping.method, self.task.outcome):
            raise ValueError(
                "recalibration has parameters for another number of classes than "
                f"{self.task.outcome.outputs}"
            )
        return self


@dataclass(frozen=True)
class StoredPosterior:
    """A posterior read from a file, with all that is needed to predict.

    Attributes:
        samples: In memory.
        metadata: What the file says of itself.
    """

    samples: PosteriorSamples
    metadata: PosteriorMetadata


class CodeNotAllowedError(UserError):
    """The file needs code that nobody here has allowed, or an object that nobody has given."""


def save_posterior(
    path: Path,
    samples: AnySamples,
    model: Model,
    task: Task,
    scenario_hash: str,
    recalibration: RecalibrationMap | None = None,
) -> None:
    """Write samples, weights, temperatures, metadata and a checksum of it all.

    A reader never meets half a file. Samples that stay on disk are copied a piece at a time.

    Args:
        path: Of the file.
        samples: One or more.
        model: Whose parameters they are.
        task: Of the model.
        scenario_hash: Digest of the resolved scenario.
        recalibration: Map of their predictions, if any.

    Raises:
        UserError: If it cannot be written.
    """
    metadata = PosteriorMetadata(
        model=model, task=task, scenario_hash=scenario_hash, recalibration=recalibration
    )
    with replaced_atomically(path) as partial:
        write_samples(partial, samples, {_KEY: metadata.model_dump_json()})


def load_posterior(path: Path, allowed_code: Collection[str] = ()) -> StoredPosterior:
    """Read a file of `save_posterior`, taking nothing in it on trust.

    Args:
        path: Of the file.
        allowed_code: Factories of own modules that the file may name, since reading it imports what
            it names.

    Returns:
        The posterior, whose samples fit their model and are finite.

    Raises:
        CodeNotAllowedError: If the file names another factory, or is of another module object.
        UserError: If it is absent, or its metadata, names, shapes, types or values are not as they
            must be.
    """
    if not path.is_file():
        raise UserError(
            f"posterior file {path} does not exist: give the run directory of a finished run"
        )
    try:
        return _read_posterior(path, allowed_code)
    except CodeNotAllowedError:
        raise
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        reason = f"{key}: {first['msg']}" if key else first["msg"]
    except (SafetensorError, ValueError, OSError, UserError, RuntimeError) as error:
        # RuntimeError is how torch refuses a model whose size does not fit its integers.
        reason = str(error)
    raise UserError(
        f"{path} is not a posterior file of this version: {reason}. Put back a copy of it, or "
        f"write it again with  fl-dpbayes simulate --resume {shlex.quote(str(path.parent))}  "
        "(for one of an older version, run its scenario again)"
    )


def _read_posterior(path: Path, allowed_code: Collection[str]) -> StoredPosterior:
    check_seal(path)
    with safe_open(path, framework="numpy") as file:
        metadata = PosteriorMetadata.model_validate_json((file.metadata() or {}).get(_KEY, ""))
        _check_code(metadata.model, path, allowed_code)
        sample_count = int(np.prod(file.get_slice("weights").get_shape()))
        expected = _expected_shapes(metadata, sample_count)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        if shapes != expected:
            raise ValueError("names or shapes of the arrays are not those of the model")
        _check_types(file)
        arrays = {name: file.get_tensor(name) for name in expected}
    for name, array in arrays.items():
        if array.dtype != (np.float32 if name.startswith(f"{SAMPLES}/") else np.float64):
            raise ValueError(
                f"array {name!r} is {array.dtype}: samples must be float32, all else float64"
            )
        check_values(name, array)
    if len(arrays["weights"]) == 0:
        raise ValueError("it holds no sample")
    samples = PosteriorSamples(
        arrays=without_prefix(SAMPLES, arrays),
        weights=arrays["weights"],
        temperatures=arrays["temperatures"],
    )
    return StoredPosterior(samples, metadata)


def _check_code(model: Model, path: Path, allowed: Collection[str]) -> None:
    if not isinstance(model, ModuleModel):
        return
    if model.factory.startswith(PROVIDED):
        if given_object(model) is None:
            raise CodeNotAllowedError(
                f"{path} is of a run with a module object, which no file holds: give one of the "
                "same layers, and the same values of what was not trained, in Python:  "
                f"fl.load_run({str(path.parent)!r}, model=MyNet())"
            )
    elif model.factory not in allowed:
        raise CodeNotAllowedError(
            f"{path} names the code {model.factory!r}, which would be imported and run here: if "
            "you trust it, allow it "
            f"with  --allow-code {model.factory}  (Python: allowed_code=[{model.factory!r}])"
        )


def _check_types(file: safe_open) -> None:
    """Check the stored types before an array is read: the format has types that NumPy has not."""
    for name in file.keys():  # noqa: SIM118
        stored_type = file.get_slice(name).get_dtype()
        if stored_type not in TYPE_NAMES.values():
            raise ValueError(f"array {name!r} is {stored_type}: it must be float32 or float64")


def _expected_shapes(metadata: PosteriorMetadata, samples: int) -> dict[str, tuple[int, ...]]:
    shapes = model_shapes(metadata.model, metadata.task)
    expected = prefixed(SAMPLES, {name: (samples, *shape) for name, shape in shapes.items()})
    return expected | {"weights": (samples,), "temperatures": (samples,)}
