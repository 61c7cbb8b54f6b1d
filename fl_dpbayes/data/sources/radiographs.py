"""Chest-like pictures with an opacity, labelled by its contrast with known probability."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.config import OfficialPart, Radiographs
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.synthetic_records import (
    draw_labels,
    site_effects,
    sites_of_part,
    synthetic_records,
)

Pixels = npt.NDArray[np.float32]
# Pixels that are drawn at once: enough for speed, little beside the pictures themselves.
PIXELS_AT_ONCE = 2**20
# Grey values before acquisition: 0 is air, 1 bone.
TISSUE = 0.72
LUNG = -0.45
HEART = 0.28
RIB = 0.05
OPACITY = 0.4
# Of the log odds of label 1, per unit of contrast.
STEEPNESS = 10.0
# Lengths and places are shares of the side.
LUNG_CENTER = 0.22
LUNG_WIDTH = 0.15
LUNG_HEIGHT = 0.34
NOISE = 0.04


@dataclass(frozen=True)
class Acquisition:
    """What each site's scanner and readers do.

        pixel = clip(1/2 + gain (p - 1/2) + offset + noise N(0, 1))
        log odds of label 1 += intercept

    Attributes:
        gains: (K,).
        offsets: (K,).
        noises: (K,).
        intercepts: (K,).
    """

    gains: npt.NDArray[np.float64]
    offsets: npt.NDArray[np.float64]
    noises: npt.NDArray[np.float64]
    intercepts: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Patients:
    """What is drawn for each of N patients: anatomy, and the opacity in one lung.

    Attributes:
        size: (N,), of the chest, standard normal.
        shift: (N,), of the whole chest to the right, standard normal.
        ribs: (N,), their phase, in [0, 1).
        contrast: (N,), of the opacity, in [0, 1].
        lung: (N,), 1 where the opacity is on the right-hand side of the picture, -1 on the left.
        angle: (N,), the opacity's, seen from the lung's centre, in turns, in [0, 1].
        distance: (N,), the opacity's from the lung's centre, in [0, 1]; 1 is at six tenths of the
            lung.
        radius: (N,), the opacity's, in [0, 1].
    """

    size: Pixels
    shift: Pixels
    ribs: Pixels
    contrast: Pixels
    lung: Pixels
    angle: Pixels
    distance: Pixels
    radius: Pixels


def acquisition(source: Radiographs) -> Acquisition:
    """Draw the sites' ways to take and read pictures around the average one.

        gain_k = exp(h u_k / 5),  offset_k = h u'_k / 12
        noise_k = .04 exp(2 h u''_k / 5),  intercept_k = h v_k

    Args:
        source: h is its `heterogeneity`; at 0 all sites have the average values.
    """
    effects = site_effects(source, 4)
    return Acquisition(
        gains=np.exp(effects[:, 0] / 5),
        offsets=effects[:, 1] / 12,
        noises=NOISE * np.exp(2 * effects[:, 2] / 5),
        intercepts=effects[:, 3],
    )


def load(source: Radiographs, part: OfficialPart) -> Records:
    """Draw one part of the source.

        c ~ U(0, 1),  P(y = 1 | c) = sigmoid(STEEPNESS (c - threshold) + intercept_k)

    The label depends on the latent contrast c and not on the noisy picture, so the truth is p(y |
    c), which no model of pictures attains. Its average over the records in a confidence bin is E[y
    | bin] all the same, by the tower property: given c and the site, the picture says nothing more
    about y.

    Args:
        source: Seed, sites and the pictures' side, which changes their resolution and not the
            patients.
        part: `train` or `test`; the latter has new patients of the same hospitals.

    Returns:
        The records; grey levels are uint8, not yet scaled.
    """
    scanners = acquisition(source)
    sites, generator = sites_of_part(source, part)
    patients = draw_patients(len(sites), generator)
    contrast = patients.contrast.astype(np.float64)
    log_odds = STEEPNESS * (contrast - source.threshold) + scanners.intercepts[sites]
    labels = draw_labels(log_odds, generator)
    pixels = np.empty((len(sites), 1, source.side, source.side), np.uint8)
    step = max(1, PIXELS_AT_ONCE // source.side**2)
    for start in range(0, len(sites), step):
        chosen = np.arange(start, min(start + step, len(sites)))
        pictures = draw_pictures(patients, chosen, source.side)
        pixels[chosen, 0] = _acquire(pictures, scanners, sites[chosen], generator)
    return synthetic_records(source, features=pixels, labels=labels, log_odds=log_odds, sites=sites)


def _acquire(
    pictures: Pixels,
    scanners: Acquisition,
    sites: npt.NDArray[np.int64],
    generator: np.random.Generator,
) -> Pixels:
    """Take pictures, (M, side, side), at the sites' scanners: grey levels, 0 to 255."""
    gain = scanners.gains[sites, None, None].astype(np.float32)
    offset = scanners.offsets[sites, None, None].astype(np.float32)
    noise = scanners.noises[sites, None, None].astype(np.float32)
    grain = noise * generator.standard_normal(pictures.shape, dtype=np.float32)
    acquired = 0.5 + gain * (pictures - 0.5) + offset + grain
    return np.rint(255 * acquired.clip(0, 1))


def draw_patients(count: int, generator: np.random.Generator) -> Patients:
    """Draw anatomy and opacities of patients; every value is independent of the others.

    Args:
        count: The number of patients.
        generator: Draws them.
    """
    size, shift = generator.standard_normal((2, count), dtype=np.float32)
    ribs, contrast, side, angle, distance, radius = generator.random((6, count), dtype=np.float32)
    return Patients(
        size=size,
        shift=shift,
        ribs=ribs,
        contrast=contrast,
        lung=np.where(side < 0.5, np.float32(1), np.float32(-1)),
        angle=angle,
        distance=np.sqrt(distance),
        radius=radius,
    )


def draw_pictures(patients: Patients, chosen: npt.NDArray[np.int64], side: int) -> Pixels:
    """Draw the chests of some patients before acquisition.

    Args:
        patients: N patients.
        chosen: (M,), which of them.
        side: The pictures' side in pixels.

    Returns:
        Grey values, (M, side, side), about 0 to 1.
    """

    def chosen_values(values: Pixels) -> Pixels:
        return values[chosen, None, None]

    places = (np.arange(side, dtype=np.float32) + 0.5) / side - 0.5
    scale = 1 + 0.06 * chosen_values(patients.size)
    across = (places[None, None, :] - 0.02 * chosen_values(patients.shift)) / scale
    down = places[None, :, None] / scale
    # The two lungs mirror each other, so the distance from the midline serves both.
    from_midline = np.abs(across)
    inside = 1 - ((from_midline - LUNG_CENTER) / LUNG_WIDTH) ** 2 - (down / LUNG_HEIGHT) ** 2
    lung = expit(8 * inside)
    phase = chosen_values(patients.ribs)
    arcs = np.cos(2 * np.pi * (8 * (down + 1.5 * from_midline**2) + phase))
    heart = np.exp(-(((across - 0.06) / 0.12) ** 2) - ((down - 0.12) / 0.16) ** 2)
    angle = 2 * np.pi * chosen_values(patients.angle)
    reach = 0.6 * chosen_values(patients.distance)
    blob_across = chosen_values(patients.lung) * (LUNG_CENTER + LUNG_WIDTH * reach * np.cos(angle))
    blob_down = LUNG_HEIGHT * reach * np.sin(angle)
    width = 0.06 + 0.04 * chosen_values(patients.radius)
    # A Gaussian in the plane is the product of one along each axis, which saves most of its
    # exponentials.
    blob = np.exp(-(((across - blob_across) / width) ** 2) / 2) * np.exp(
        -(((down - blob_down) / width) ** 2) / 2
    )
    opacity = OPACITY * chosen_values(patients.contrast) * blob
    return TISSUE + lung * (LUNG + RIB * arcs) + HEART * heart + opacity
