"""Acquisition shift: another scanner, protocol or export, the patients unchanged."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import grid_sample

from fl_dpbayes.config import ImageShift, require_torchvision

Images = npt.NDArray[np.float32]
Ladder = tuple[float, float, float, float, float]

# The resolutions, shorter sides in pixels, that a severity has a value at: 8 and 28 are digits and
# MNIST.
SIDES = (8, 28, 224)
# The sides below which an image counts as the first and the second of them.
SMALL_BELOW = 16
MIDDLE_BELOW = 112

# What the severities 1 to 5 mean at 8, 28 and 224 pixels: MedMNIST-C, arXiv 2406.17536, and
# CIFAR-C, Hendrycks and Dietterich 2019. The values at 8 pixels and those of inversion, border,
# marker, bias field, rotation and, at 28 pixels, resolution are this project's.
SEVERITIES: dict[ImageShift, dict[int, Ladder]] = {
    # Exponents, below 1: brighter, above: darker; MedMNIST-C gamma_down and gamma_up.
    "gamma": dict.fromkeys(SIDES, (0.9, 0.8, 0.7, 0.6, 0.4)),
    "gamma_dark": dict.fromkeys(SIDES, (1.1, 1.2, 1.3, 1.4, 1.6)),
    # Factor about the mean; MedMNIST-C contrast_down.
    "contrast": dict.fromkeys(SIDES, (0.9, 0.8, 0.7, 0.6, 0.4)),
    # Expected quanta in a white pixel; 28: CIFAR-C shot noise, 224: MedMNIST-C.
    "exposure": {
        8: (300, 200, 100, 50, 25),
        28: (500, 250, 100, 75, 50),
        224: (300, 200, 150, 100, 80),
    },
    # Standard deviation; 28: CIFAR-C gaussian noise, 224: MedMNIST-C.
    "detector_noise": {
        8: (0.05, 0.1, 0.15, 0.2, 0.25),
        28: (0.04, 0.06, 0.08, 0.09, 0.1),
        224: (0.04, 0.05, 0.06, 0.07, 0.08),
    },
    # Standard deviation in pixels; 28: CIFAR-C, 224: MedMNIST-C.
    "blur": {
        8: (0.4, 0.5, 0.6, 0.7, 0.8),
        28: (0.4, 0.6, 0.7, 0.8, 1.0),
        224: (0.8, 1.1, 1.4, 1.7, 2.0),
    },
    # Share of the pixels that stay along each side; 224: MedMNIST-C pixelate.
    "resolution": {
        8: (0.875, 0.75, 0.625, 0.5, 0.375),
        28: (0.9, 0.8, 0.7, 0.6, 0.5),
        224: (0.8, 0.7, 0.6, 0.5, 0.4),
    },
    # Share of the images.
    "inversion": dict.fromkeys(SIDES, (0.1, 0.25, 0.5, 0.75, 1.0)),
    # Thickness as a share of the shorter side.
    "border": {
        8: (0.05, 0.10, 0.15, 0.20, 0.25),
        28: (0.03, 0.06, 0.09, 0.12, 0.15),
        224: (0.03, 0.06, 0.09, 0.12, 0.15),
    },
    # Opacity of the letter.
    "marker": dict.fromkeys(SIDES, (0.2, 0.4, 0.6, 0.8, 1.0)),
    # Bound of the log field; the last is TorchIO's.
    "bias_field": dict.fromkeys(SIDES, (0.1, 0.2, 0.3, 0.4, 0.5)),
    # Degrees.
    "rotation": {
        8: (4.0, 8.0, 12.0, 16.0, 20.0),
        28: (2.0, 4.0, 6.0, 8.0, 10.0),
        224: (2.0, 4.0, 6.0, 8.0, 10.0),
    },
}

LETTERS = {"L": ("100", "100", "100", "100", "111"), "R": ("110", "101", "110", "101", "101")}
# A stroke is one pixel wide at 28 pixels, so that the letter covers the same share of a film at
# 224.
PIXELS_PER_STROKE = 28
BIAS_FIELD_ORDER = 3


def shift_images(
    images: Images, kind: ImageShift, severity: int, generator: np.random.Generator
) -> Images:
    """Change images as another acquisition would.

    Args:
        images: (N, channels, height, width), pixels in [0, 1].
        kind: `gamma` (x^g with g below 1: brighter, detector response), `gamma_dark` (g above 1),
            `contrast` (window), `exposure` (quantum noise at a lower dose), `detector_noise`
            (electronic noise), `blur` (focal spot, motion), `resolution` (fewer pixels, scaled
            back), `inversion` (a share of the films with the other photometric interpretation),
            `border` (collimation: a black frame), `marker` (a letter L or R in a corner),
            `bias_field` (uneven brightness), `rotation` (positioning).
        severity: 1 to 5, a value of `SEVERITIES` at the images' shorter side.
        generator: Draws noise, letters and directions.

    Source:
        Castro, Walker and Glocker, Nat. Commun. 11:3673, 2020 (taxonomy); Hendrycks and Dietterich
        2019, MedMNIST-C, arXiv 2406.17536 (corruptions).
    """
    height, width = images.shape[-2:]
    value = SEVERITIES[kind][_nearest_side(min(height, width))][severity - 1]
    # A copy: what is kept of a source is read-only.
    pixels = torch.tensor(images)
    match kind:
        case "gamma" | "gamma_dark" | "contrast" | "blur" | "resolution":
            shifted = _shift_by_torchvision(pixels, kind, value)
        case "exposure":
            # Poisson(dose x) / dose by its normal limit: unlike Poisson draws, normal ones can be
            # scaled by severity.
            shifted = pixels + torch.sqrt(pixels / value) * _normal(pixels, generator)
        case "detector_noise":
            shifted = pixels + value * _normal(pixels, generator)
        case "inversion":
            is_inverted = torch.from_numpy(generator.random(len(images)) < value)
            shifted = torch.where(is_inverted[:, None, None, None], 1 - pixels, pixels)
        case "border":
            thickness = value * min(height, width)
            rows = _uncovered(height, thickness)
            columns = _uncovered(width, thickness)
            shifted = pixels * (rows[:, None] * columns[None, :])
        case "marker":
            shifted = torch.from_numpy(_with_markers(images, value, generator))
        case "bias_field":
            fields = _bias_fields(
                count=len(images), height=height, width=width, size=value, generator=generator
            )
            shifted = pixels * torch.from_numpy(fields)[:, None]
        case "rotation":
            shifted = _rotation(pixels, value, generator)
    return shifted.clamp(0, 1).numpy()


def _nearest_side(side: int) -> int:
    """Return which of SIDES an image of this shorter side counts as."""
    if side < SMALL_BELOW:
        return 8
    if side < MIDDLE_BELOW:
        return 28
    return 224


def _shift_by_torchvision(pixels: torch.Tensor, kind: ImageShift, value: float) -> torch.Tensor:
    # Two seconds to import.
    require_torchvision()
    from torchvision.transforms.v2 import functional

    height, width = pixels.shape[-2:]
    match kind:
        case "gamma" | "gamma_dark":
            return functional.adjust_gamma(pixels, value)
        case "contrast":
            return functional.adjust_contrast(pixels, value)
        case "blur":
            # A kernel of three standard deviations either way; it may not reach past the opposite
            # edge.
            radius = min(int(np.ceil(3 * value)), min(height, width) - 1)
            return functional.gaussian_blur(
                pixels, kernel_size=[2 * radius + 1] * 2, sigma=[value] * 2
            )
    # Resolution by anti-aliased triangles, not block means: those lose less at a factor of one half
    # than just above it.
    fewer = [max(1, round(value * length)) for length in (height, width)]
    coarse = functional.resize(pixels, fewer, antialias=True)
    return functional.resize(coarse, [height, width], antialias=True)


def _with_markers(images: Images, opacity: float, generator: np.random.Generator) -> Images:
    """Draw a laterality marker into an upper corner of each image, by a fair coin.

        x' = x + opacity (1 - x) on the letter's strokes, x elsewhere

    The letter is L on the right or R on the left. Source: markers as a confounder, Zech et al.,
    PLOS Medicine 2018, 10.1371/journal.pmed.1002683.
    """
    height, width = images.shape[-2:]
    is_left = generator.random(len(images)) < 0.5
    strokes = np.where(
        is_left[:, None, None], _strokes("L", height, width), _strokes("R", height, width)
    )
    return images + (np.float32(opacity) * strokes)[:, None] * (1 - images)


def _normal(pixels: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(generator.standard_normal(tuple(pixels.shape), dtype=np.float32))


def _uncovered(length: int, thickness: float) -> torch.Tensor:
    # Edge pixels keep the share that the frame does not cover, so that a frame thinner than a pixel
    # has an effect.
    distance = torch.arange(length, dtype=torch.float32)
    nearest_edge = torch.minimum(distance, distance.flip(0))
    return (nearest_edge + 1 - thickness).clamp(0, 1)


def _rotation(pixels: torch.Tensor, angle: float, generator: np.random.Generator) -> torch.Tensor:
    is_clockwise = torch.from_numpy(generator.random(len(pixels)) < 0.5)
    rotated = pixels.clone()
    rotated[is_clockwise] = turned_by(pixels[is_clockwise], -angle)
    rotated[~is_clockwise] = turned_by(pixels[~is_clockwise], angle)
    return rotated


def turned_by(pixels: torch.Tensor, degrees: float) -> torch.Tensor:
    """Turn pictures about their centre, as torchvision's `rotate` does.

    Args:
        pixels: (N, channels, height, width).
        degrees: The angle, counter-clockwise. Between pixels values are bilinear, outside black.
    """
    height, width = pixels.shape[-2:]
    angle = math.radians(-(degrees % 360))
    cosine = math.cos(angle)
    sine = math.sin(angle)
    theta = torch.tensor([[cosine, sine, 0.0], [-sine, cosine, 0.0]])
    x = _centred_positions(width)
    y = _centred_positions(height)
    positions = torch.stack(
        [x.expand(height, width), y[:, None].expand(height, width), torch.ones(height, width)],
        dim=-1,
    )
    half_sides = torch.tensor([0.5 * width, 0.5 * height])
    grid = positions.view(1, -1, 3).bmm(theta.T[None] / half_sides)
    grid = grid.view(1, height, width, 2).expand(len(pixels), -1, -1, -1)
    return grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _centred_positions(length: int) -> torch.Tensor:
    return torch.linspace((1.0 - length) * 0.5, (length - 1.0) * 0.5, length)


def _bias_fields(
    *, count: int, height: int, width: int, size: float, generator: np.random.Generator
) -> Images:
    """Draw smooth positive fields, (count, height, width), as of the anode's heel.

        f(u, v) = exp(size sum_{i + j <= 3} a_ij u^i v^j),  a_ij ~ U(-1, 1)

    u and v are in [-1, 1] over the image. Source: polynomial field of van Leemput et al., IEEE TMI
    18(10), 1999, as in TorchIO's RandomBiasField.
    """
    powers = [(i, j) for i in range(BIAS_FIELD_ORDER + 1) for j in range(BIAS_FIELD_ORDER + 1 - i)]
    u = np.linspace(-1, 1, width, dtype=np.float32)
    v = np.linspace(-1, 1, height, dtype=np.float32)
    terms = np.stack([np.outer(v**j, u**i).ravel() for i, j in powers])
    coefficients = generator.uniform(-1, 1, (count, len(powers))).astype(np.float32)
    return np.exp(np.float32(size) * (coefficients @ terms)).reshape(count, height, width)


def _strokes(letter: str, height: int, width: int) -> Images:
    """Return a letter's strokes in an upper corner, 1 on them and 0 elsewhere, (height, width)."""
    stroke = max(1, min(height, width) // PIXELS_PER_STROKE)
    bitmap = np.array([[int(pixel) for pixel in row] for row in LETTERS[letter]], dtype=np.float32)
    scaled = np.kron(bitmap, np.ones((stroke, stroke), dtype=np.float32))
    # One stroke of margin; what does not fit into a small image is cut off.
    mark = np.pad(scaled, stroke)[:height, :width]
    first_column = width - mark.shape[1] if letter == "L" else 0
    canvas = np.zeros((height, width), dtype=np.float32)
    canvas[: mark.shape[0], first_column : first_column + mark.shape[1]] = mark
    return canvas
