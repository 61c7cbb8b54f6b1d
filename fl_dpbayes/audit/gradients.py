"""The auditor's own gradients and clipping: nothing here is what a site's gradient engines use."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit.canary_site import WHOLE, willing
from fl_dpbayes.audit.plans import private_settings
from fl_dpbayes.config import (
    AnyPrivacyPlan,
    AutomaticClipping,
    GlobalClipping,
    Model,
    PerLayerClipping,
    PrivacyPlan,
    Scenario,
    SiteFile,
    Task,
)
from fl_dpbayes.data import SiteSplit
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import build_model, model_shapes

Array = npt.NDArray[np.float64]
Grey = npt.NDArray[np.uint8]

# A model's own output layer is zero, and then no gradient reaches the layers below; much more would
# saturate it.
WEIGHT_SCALE = 0.05
ATTEMPTS = 100
# C over the longest of the gradients that shall be clipped.
CLIPPED_SHARE = 0.7
# The longest of the gradients over the bound of global clipping.
WITHIN_BOUND = 0.5


def synthetic_records(
    task: Task, generator: np.random.Generator, count: int
) -> tuple[Grey, npt.NDArray[np.int64]]:
    """Draw records of random grey levels, with labels in turn.

    Args:
        task: Their shape and classes.
        generator: Draws the levels.
        count: One or more.

    Returns:
        Levels, shape (count, *shape), and labels, shape (count,).
    """
    levels = generator.integers(0, 256, (count, *task.input_shape), dtype=np.uint8)
    labels = np.arange(count) % task.outcome.outputs
    return levels, labels


def start_vector(
    model: Model, task: Task, generator: np.random.Generator, scale: float = 1.0
) -> Array:
    """Draw a start state: a model's own and noise, so that its last layer is not 0.

    Args:
        model: That is trained.
        task: Its inputs and classes.
        generator: Draws the model's seed and the noise.
        scale: Of the whole state.

    Returns:
        Parameters, shape (d,), each a float32 number.
    """
    module = build_model(model, task, seed=int(generator.integers(2**31)))
    initial = torch.nn.utils.parameters_to_vector(module.parameters()).detach().double().numpy()
    start = scale * (initial + generator.normal(0.0, WEIGHT_SCALE, len(initial)))
    return start.astype(np.float32).astype(np.float64)


def model_features(scenario: Scenario, folder: Path, levels: Grey) -> npt.NDArray[np.float32]:
    """Return what the scenario's trained layers see of records.

    Args:
        scenario: Whose model may have a public part before the trained layers.
        folder: For the cache of public features.
        levels: Grey levels, shape (N, *shape).

    Returns:
        The records in [0, 1], or their public features, shape (N, *).
    """
    from clients.model_inputs import model_inputs

    count = len(levels)
    features = levels.astype(np.float32) / np.float32(255)
    part = SiteSplit(features, np.zeros(count, np.int64), np.arange(count), count)
    site_file = SiteFile(
        name="auditor",
        role="train",
        source=scenario.data.source,
        units=count,
        split=WHOLE,
        policy=willing(),
        device=scenario.resources.device,
        cache_folder=folder / "auditor-cache",
    )
    return model_inputs(site_file, scenario.model, part).features


def unit_gradient(
    scenario: Scenario, folder: Path, start: Array, levels: Grey, label: int
) -> Array:
    """Return the gradient of minus the log likelihood of one record, by autograd in float64.

    Args:
        scenario: Whose model it is.
        folder: For the cache of public features.
        start: Parameters, shape (d,).
        levels: Of the record.
        label: Of the record.

    Returns:
        Shape (d,).
    """
    module = build_model(scenario.model, scenario.data.source.task, seed=0).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start), module.parameters())
    features = torch.from_numpy(model_features(scenario, folder, levels[None])).double()
    loss = torch.nn.functional.cross_entropy(
        module(features), torch.tensor([label]), reduction="sum"
    )
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()


def reaching_start(
    scenario: Scenario, folder: Path, generator: np.random.Generator, levels: Grey, label: int
) -> Array:
    """Draw starts until a record's gradient reaches every tensor; hidden units may be silent.

    Args:
        scenario: Whose model it is.
        folder: For the cache of public features.
        generator: Draws the starts.
        levels: Of the record.
        label: Of the record.

    Returns:
        Parameters, shape (d,).

    Raises:
        UserError: If none of ATTEMPTS starts does.
    """
    for _ in range(ATTEMPTS):
        start = start_vector(scenario.model, scenario.data.source.task, generator)
        gradient = unit_gradient(scenario, folder, start, levels, label)
        if min(tensor_lengths(gradient, scenario)) > 0:
            return start
    raise UserError(
        "the audit found no start from which gradients reach every layer: is part of the "
        "model unused?"
    )


def clip_norm_for(privacy: AnyPrivacyPlan, length: float) -> float:
    """Return a C that clips a gradient; under global clipping one whose bound lies above it.

    Args:
        privacy: Its clipping rule decides.
        length: Of the gradient, > 0.

    Returns:
        C > 0.
    """
    assert isinstance(privacy, PrivacyPlan)
    if isinstance(privacy.clipping, GlobalClipping):
        return length / WITHIN_BOUND * privacy.clip_norm / privacy.clipping.bound
    return CLIPPED_SHARE * length


def clipped(
    gradient: Array, scenario: Scenario, clip_norm: float, *, spread: bool = False
) -> Array:
    """Clip a unit's gradient by the scenario's rule.

    Args:
        gradient: Shape (d,).
        scenario: Whose clipping it is.
        clip_norm: C > 0.
        spread: Whether the state has a spread: d zeros then follow, as if it were 0.

    Returns:
        Shape (d,) or (2 d,).
    """
    privacy = private_settings(scenario)
    length = float(np.linalg.norm(gradient))
    factor: Array | float
    match privacy.clipping:
        case GlobalClipping(bound=bound):
            within = bound * clip_norm / privacy.clip_norm
            factor = clip_norm / within * min(1.0, max(0.0, 2 - length / within))
        case AutomaticClipping(stability=stability):
            factor = clip_norm / (length + stability)
        case PerLayerClipping():
            sizes = _layer_sizes(scenario)
            layers = len(sizes) * (2 if spread else 1)
            bound = clip_norm / math.sqrt(layers)
            factors = []
            for part in np.split(gradient, np.cumsum(sizes)[:-1]):
                # A unit may not reach a layer: a length of 0 stays as it is.
                part_length = max(float(np.linalg.norm(part)), bound)
                factors.append(np.full(len(part), bound / part_length))
            factor = np.concatenate(factors)
        case _:
            factor = min(1.0, clip_norm / length)
    return np.concatenate([factor * gradient, np.zeros(len(gradient) if spread else 0)])


def tensor_lengths(gradient: Array, scenario: Scenario) -> list[float]:
    """Return the length of the gradient's part for each tensor of the model.

    Args:
        gradient: Shape (d,).
        scenario: Whose model it is.

    Returns:
        L2 lengths, in the order of the tensors.
    """
    shapes = model_shapes(scenario.model, scenario.data.source.task)
    sizes = [math.prod(shape) for shape in shapes.values()]
    return [float(np.linalg.norm(part)) for part in np.split(gradient, np.cumsum(sizes)[:-1])]


def _layer_sizes(scenario: Scenario) -> list[int]:
    """Return the number of parameters of each layer: weights and biases together."""
    sizes: dict[str, int] = {}
    for name, shape in model_shapes(scenario.model, scenario.data.source.task).items():
        layer = name.rpartition(".")[0]
        sizes[layer] = sizes.get(layer, 0) + math.prod(shape)
    return list(sizes.values())
