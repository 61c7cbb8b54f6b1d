"""Acquisition shift: another scanner, protocol or export, the patients unchanged."""

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from fl_dpbayes.config.data import ImageShift
from fl_dpbayes.data.shifts.bias_field import bias_fields
from fl_dpbayes.data.shifts.jpeg import compress_as_jpeg
from fl_dpbayes.data.shifts.markers import add_markers
from fl_dpbayes.data.shifts.severity import image_severity

Images = npt.NDArray[np.float32]


def shift_images(images: Images, kind: ImageShift, severity: int, generator: np.random.Generator) -> Images:
    """Change images as another acquisition would.

    Args:
        images: (N, channels, height, width), pixels in [0, 1].
        kind: `gamma` (x^g with g below 1: brighter, detector response), `gamma_dark` (g above 1), `contrast` (window),
            `exposure` (quantum noise at a lower dose), `detector_noise` (electronic noise), `blur` (focal spot,
            motion), `resolution` (fewer pixels, scaled back), `jpeg` (lossy export), `inversion` (a share of the films
            with the other photometric interpretation), `border` (collimation: a black frame), `marker` (a letter L or
            R in a corner, whatever the label), `bias_field` (uneven brightness), `rotation` (positioning).
        severity: 1 to 5; the values per resolution are in `severity.py`.
        generator: where all draws come from; they do not depend on the severity.

    Returns:
        Images of the same shape, pixels in [0, 1].

    Source: Castro, Walker and Glocker, Nat. Commun. 11:3673, 2020 (taxonomy); Hendrycks and Dietterich 2019,
    MedMNIST-C, arXiv 2406.17536 (corruptions).
    """
    value = image_severity(kind, severity, min(images.shape[-2:]))
    pixels = torch.from_numpy(images)
    match kind:
        case "gamma" | "gamma_dark":
            shifted = functional.adjust_gamma(pixels, value)
        case "contrast":
            shifted = functional.adjust_contrast(pixels, value)
        case "exposure":
            shifted = _exposure(pixels, value, generator)
        case "detector_noise":
            shifted = pixels + value * _normal(pixels, generator)
        case "blur":
            # A kernel of three standard deviations either way; it may not reach past the opposite edge.
            radius = min(int(np.ceil(3 * value)), min(images.shape[-2:]) - 1)
            shifted = functional.gaussian_blur(pixels, kernel_size=[2 * radius + 1] * 2, sigma=[value] * 2)
        case "resolution":
            shifted = _resolution(pixels, value)
        case "jpeg":
            shifted = torch.from_numpy(compress_as_jpeg(images, int(value)))
        case "inversion":
            chosen = torch.from_numpy(generator.random(len(images)) < value)
            shifted = torch.where(chosen[:, None, None, None], functional.invert(pixels), pixels)
        case "border":
            shifted = pixels * _frame(images.shape[-2], images.shape[-1], value)
        case "marker":
            shifted = torch.from_numpy(add_markers(images, np.full(len(images), value, np.float32), generator))
        case "bias_field":
            fields = bias_fields(len(images), images.shape[-2], images.shape[-1], value, generator)
            shifted = pixels * torch.from_numpy(fields)[:, None]
        case "rotation":
            shifted = _rotation(pixels, value, generator)
    return shifted.clamp(0, 1).numpy()


def _exposure(pixels: torch.Tensor, dose: float, generator: np.random.Generator) -> torch.Tensor:
    # Poisson(dose x) / dose by its normal limit: unlike Poisson draws, normal draws can be scaled by the severity.
    return pixels + torch.sqrt(pixels / dose) * _normal(pixels, generator)


def _resolution(pixels: torch.Tensor, factor: float) -> torch.Tensor:
    # Anti-aliased triangles, not block means: those lose less at a factor of one half than just above it.
    sides = pixels.shape[-2:]
    fewer = functional.resize(pixels, [max(1, round(factor * side)) for side in sides], antialias=True)
    return functional.resize(fewer, list(sides), antialias=True)


def _normal(pixels: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(generator.standard_normal(tuple(pixels.shape), dtype=np.float32))


def _frame(height: int, width: int, fraction: float) -> torch.Tensor:
    # Edge pixels keep the share that the frame does not cover, so that a frame thinner than a pixel has an effect.
    thickness = fraction * min(height, width)
    rows, columns = (_uncovered(size, thickness) for size in (height, width))
    return rows[:, None] * columns[None, :]


def _uncovered(size: int, thickness: float) -> torch.Tensor:
    distance = torch.arange(size, dtype=torch.float32)
    nearest_edge = torch.minimum(distance, distance.flip(0))
    return (nearest_edge + 1 - thickness).clamp(0, 1)


def _rotation(pixels: torch.Tensor, angle: float, generator: np.random.Generator) -> torch.Tensor:
    clockwise = torch.from_numpy(generator.random(len(pixels)) < 0.5)
    turned = pixels.clone()
    for side, degrees in ((clockwise, -angle), (~clockwise, angle)):
        turned[side] = functional.rotate(pixels[side], degrees, interpolation=InterpolationMode.BILINEAR)
    return turned
