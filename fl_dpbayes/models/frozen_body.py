"""The layers of a network before its last as a fixed feature map.

Their values are random or from a local file.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from fl_dpbayes.config import FrozenBody, Model
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest
from fl_dpbayes.models.backbone import stored_state
from fl_dpbayes.models.build import body_layers, build_body
from fl_dpbayes.models.feature_map import FeatureMap, checked_feature_map
from fl_dpbayes.models.row_wise import RowWise

MAX_RECORDS_PER_PASS = 64
# Numbers that one pass may hold in a layer's inputs and outputs together: 256 MiB.
MAX_ACTIVATIONS = 2**26
_SAMPLES = "samples/"


def body_size(model: Model, input_shape: tuple[int, ...]) -> int:
    """Count the parameters of a frozen body without allocating them.

    Args:
        model: The whole network's record.
        input_shape: Of a record, or (D,) of its features.

    Returns:
        How many.

    Raises:
        UserError: The body cannot take such records.
    """
    layers, _ = body_layers(model, input_shape)
    return sum(parameter.numel() for parameter in layers.parameters())


def records_per_pass(model: Model, input_shape: tuple[int, ...]) -> int:
    """Say how many records fit into a pass, without taking its memory.

    Args:
        model: The whole network's record.
        input_shape: Of a record, or (D,) of its features.

    Returns:
        At most 64; 0 if not one fits.

    Raises:
        UserError: The body cannot take such records.
    """
    layers, _ = body_layers(model, input_shape)
    values = torch.empty((1, *input_shape), device="meta")
    widest = 1
    for layer in layers:
        outputs = layer(values)
        widest = max(widest, values.numel() + outputs.numel())
        values = outputs
    return min(MAX_RECORDS_PER_PASS, MAX_ACTIVATIONS // widest)


def frozen_body(
    model: Model,
    body: FrozenBody,
    input_shape: tuple[int, ...],
    *,
    weights_folder: Path | None = None,
    device: str | torch.device = "cpu",
) -> FeatureMap:
    """Prepare the map from records, or their features, to what a model's last layer reads.

    Args:
        model: The whole network's record.
        body: Its frozen body: a seed, or the digest of its weights.
        input_shape: Of a record, or (D,) of its features.
        weights_folder: Where weight files lie (.safetensors, .pth, .pt), under any name; not needed
            for random values.
        device: Where the map runs.

    Returns:
        The map.

    Raises:
        UserError: Records of this shape do not fit or take too much memory, no file has the digest,
            or the file holds other parameters, or one that is not finite.
    """
    layers, width = body_layers(model, input_shape)
    most_records = records_per_pass(model, input_shape)
    if most_records == 0:
        raise UserError(
            f"a layer of model.frozen_body holds more than {MAX_ACTIVATIONS} numbers for one "
            f"record of shape {list(input_shape)}: choose fewer channels or hidden units"
        )
    if body.weights is None:
        layers = build_body(model, input_shape, seed=body.seed)
    else:
        state, origin = stored_state(
            body.weights, folder=weights_folder, key="model.frozen_body.weights"
        )
        _load(layers, state=state, origin=origin)
    layers.requires_grad_(False).to(device)
    return checked_feature_map(
        (digest(model), digest(body)),
        input_shape=input_shape,
        output_shape=(width,),
        transform=RowWise(layers).features,
        most_records=most_records,
        device=torch.device(device),
    )


def _load(layers: nn.Sequential, state: dict[str, Tensor], origin: str) -> None:
    last_layer = f"{len(layers)}."
    try:
        network = _one_network(state, origin)
        values = {
            name: value.float()
            for name, value in network.items()
            if not name.startswith(last_layer)
        }
        layers.load_state_dict(values, strict=True, assign=True)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(
            f"{origin} does not hold this body: {str(error)[:300]}; give weights of the same "
            "architecture on records of the same shape, or correct model.frozen_body.weights"
        ) from None
    if not all(torch.isfinite(value).all() for value in layers.parameters()):
        raise UserError(f"{origin} holds a weight that is not a finite number: give other weights")


def _one_network(state: dict[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Take the network out of a run's posterior file of one sample; else return the weights."""
    samples = {
        name.removeprefix(_SAMPLES): value
        for name, value in state.items()
        if name.startswith(_SAMPLES)
    }
    if not samples:
        return state
    if any(value.shape[:1] != (1,) for value in samples.values()):
        raise UserError(
            f"{origin} is a posterior of several samples, whose hidden layers differ: give one "
            "network, such as that of a run with aggregation.rule 'fedavg'"
        )
    return {name: value[0] for name, value in samples.items()}
