"""A frozen torchvision network as a feature extractor.

Its weights come from a local file or from torchvision's own download.
"""

import hashlib
import pickle
import zipfile
from pathlib import Path
from urllib.error import URLError

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fl_dpbayes.config import VARIABLE, BackboneFeatures, require_torchvision
from fl_dpbayes.errors import UserError

# Mean and standard deviation of ImageNet's colours: constants that torchvision publishes with its
# weights.
MEAN = (0.485, 0.456, 0.406)
STANDARD_DEVIATION = (0.229, 0.224, 0.225)
# Name of the layer that is left out, and how many features reach it.
LAST_LAYER = {
    "resnet18": ("fc", 512),
    "resnet50": ("fc", 2048),
    "efficientnet_b0": ("classifier", 1280),
    "efficientnet_b1": ("classifier", 1280),
    "vit_b_16": ("heads", 768),
}
SUFFIXES = (".pth", ".pt", ".safetensors")


class Backbone(nn.Module):
    """The penultimate features of a frozen network in evaluation mode.

    A record's features depend on that record alone: batch normalisation uses its stored statistics.

    Args:
        network: Standardised images (N, 3, S, S) -> features (N, D).
        image_size: S, to which images are resized, in pixels.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, image_size: int) -> None:
        super().__init__()
        self.network = network
        self.image_size = image_size
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None])
        self.register_buffer("deviation", torch.tensor(STANDARD_DEVIATION)[:, None, None])
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Compute features of images.

        They are resized (bilinear, anti-aliased) and standardised; a grey channel is repeated three
        times.

        Args:
            images: Pixels in [0, 1], shape (N, 1 or 3, H, W).

        Returns:
            Shape (N, D).
        """
        size = (self.image_size, self.image_size)
        resized = interpolate(images, size=size, mode="bilinear", antialias=True)
        colours = resized.expand(-1, 3, -1, -1)
        return self.network((colours - self.mean) / self.deviation)


def backbone(features: BackboneFeatures, folder: Path | None) -> Backbone:
    """Load a frozen backbone.

    A request names weights by digest only, so it can make a site read nothing but a file which that
    site placed in the folder. Pickled files are read in torch's weights-only mode, which runs no
    code.

    Args:
        features: Architecture, image size and perhaps the digest of the weights.
        folder: Where the site keeps weight files (.pth, .pt, .safetensors), under any name; not
            needed for torchvision's own download.

    Returns:
        The network.

    Raises:
        UserError: No file has that digest, the file is no state of this architecture, or the
            download fails.
    """
    # torchvision takes longer to import than torch, and every site imports this module.
    require_torchvision()
    from torchvision.models import get_model

    with torch.device("meta"):
        network = get_model(features.architecture, weights=None)
    last_layer, _ = LAST_LAYER[features.architecture]
    setattr(network, last_layer, nn.Identity())
    if features.weights is None:
        state, origin = _downloaded_state(features.architecture)
    else:
        state, origin = stored_state(features.weights, folder=folder, key="model.features.weights")
    body = {name: value for name, value in state.items() if not name.startswith(f"{last_layer}.")}
    try:
        floats = {name: value.float() for name, value in body.items() if value.is_floating_point()}
        network.load_state_dict(body | floats, strict=True, assign=True)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(
            f"{origin} does not hold the weights of {features.architecture}: {str(error)[:300]}; "
            "give a file of that architecture, or correct model.features.architecture"
        ) from None
    return Backbone(network, features.image_size)


def _downloaded_state(architecture: str) -> tuple[dict[str, Tensor], str]:
    """Return torchvision's weights by name, and their address."""
    from torchvision.models import get_model_weights

    weights = get_model_weights(architecture).DEFAULT
    try:
        return weights.get_state_dict(progress=False, check_hash=True), weights.url
    except (URLError, OSError, RuntimeError) as error:
        raise UserError(
            f"{weights.url} cannot be downloaded: {error}; put the file in a folder, name that "
            "folder as backbone_folder, and give model.features.weights its SHA-256"
        ) from None


def stored_weights(digest: str, folder: Path | None, key: str) -> Path:
    """Find the file of weights that has a digest.

    Args:
        digest: SHA-256, hexadecimal.
        folder: Where the site keeps weight files.
        key: Of the scenario, which gave the digest.

    Returns:
        Its path.

    Raises:
        UserError: No folder is known, or no file in it has that digest.
    """
    if folder is None:
        raise UserError(
            f"{key}: the file of SHA-256 {digest[:12]}... is needed but no folder of weight "
            f"files is known: give --data-dir or set {VARIABLE} to the folder that holds "
            "backbones/; at a hospital, set backbone_folder in the site file"
        )
    candidates = sorted(
        path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file()
    )
    for path in candidates:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                return path
    raise UserError(
        f"none of the {len(candidates)} weight files in {folder} has the SHA-256 {digest}: "
        f"put the file there, set {VARIABLE} to the folder that holds backbones/, or correct {key}"
    )


def stored_state(digest: str, folder: Path | None, key: str) -> tuple[dict[str, Tensor], str]:
    """Read the file that `stored_weights` finds.

    Args:
        digest: SHA-256, hexadecimal.
        folder: Where the site keeps weight files.
        key: Of the scenario, which gave the digest.

    Returns:
        Values by name, not yet checked, and the file's path, for an error.

    Raises:
        UserError: No file has that digest, or it holds other things than weights by name.
    """
    path = stored_weights(digest, folder=folder, key=key)
    try:
        if path.suffix == ".safetensors":
            state = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        safetensors.SafetensorError,
        zipfile.BadZipFile,
        RuntimeError,
        EOFError,
    ) as error:
        raise UserError(
            f"{path} is not a file of weights alone: {str(error)[:300]}; save a plain state_dict"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise UserError(f"{path} is not a file of weights by name: save a plain state_dict")
    return state, str(path)
