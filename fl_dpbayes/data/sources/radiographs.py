"""Chest-like pictures with an opacity, labelled by its contrast with known probability."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.config import OfficialPart, Radiographs
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources import synthetic_records as synthetic

Pixels = npt.NDArray[np.float32]
# Pixels that are drawn at once: enough for speed, little beside the pictures themselves.
PIXELS_AT_ONCE = 2**20
# Grey values before acquisition: 0 is air, 1 bone. Lengths and places are shares of the side.
TISSUE, LUNG, HEART, RIB, OPACITY = 0.72, -0.45, 0.28, 0.05, 0.4
LUNG_CENTER, LUNG_WIDTH, LUNG_HEIGHT = 0.22, 0.15, 0.34
NOISE = 0.04


@dataclass(frozen=True)
class Acquisition:
    """What each site's scanner and readers do, all (K,).

    pixel = clip(1/2 + gain (p - 1/2) + offset + noise N(0, 1)),  log odds of label 1 += intercept
    """

    gains: npt.NDArray[np.float64]
    offsets: npt.NDArray[np.float64]
    noises: npt.NDArray[np.float64]
    intercepts: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Patients:
    """What is drawn for each patient, all (N,): anatomy in standard normal values, and the opacity.

    Contrast, angle (in turns), distance from the lung's centre and radius are the opacity's, in [0,
    1]; at distance 1 it is at six tenths of the lung. `lung` is 1 on the right-hand side of the
    picture and -1 on the left.
    """

    size: Pixels
    shift: Pixels  # of the whole chest to the right
    ribs: Pixels  # their phase, in [0, 1)
    contrast: Pixels
    lung: Pixels
    angle: Pixels
    distance: Pixels
    radius: Pixels


def acquisition(source: Radiographs) -> Acquisition:
    """Draw the sites' ways to take and read pictures around the average one.

        gain_k = exp(h u_k / 5),  offset_k = h u'_k / 12,  noise_k = .04 exp(2 h u''_k / 5),  intercept_k = h v_k

    h is the source's `heterogeneity`; at 0 all sites have the average values.
    """
    effects = synthetic.site_effects(source, 4)
    return Acquisition(
        gains=np.exp(effects[:, 0] / 5),
        offsets=effects[:, 1] / 12,
        noises=NOISE * np.exp(2 * effects[:, 2] / 5),
        intercepts=effects[:, 3],
    )


def load(source: Radiographs, part: OfficialPart) -> Records:
    """Draw one part of the source.

        c ~ U(0, 1),  P(y = 1 | c) = sigmoid(steepness (c - threshold) + intercept_k)

    The label depends on the latent contrast c and not on the noisy picture, so the truth is p(y |
    c), which no model of pictures attains. Its average over the records in a confidence bin is E[y
    | bin] all the same, by the tower property: given c and the site, the picture says nothing more
    about y. Grey levels are uint8, not yet scaled. The part `test` has new patients of the same
    hospitals; the side changes the pictures' resolution and not the patients.
    """
    scanners, (sites, generator) = acquisition(source), synthetic.sites_of_part(source, part)
    patients = draw_patients(len(sites), generator)
    log_odds = (
        source.steepness * (patients.contrast.astype(np.float64) - source.threshold)
        + scanners.intercepts[sites]
    )
    labels = synthetic.draw_labels(log_odds, generator)
    pixels = np.empty((len(sites), 1, source.side, source.side), np.uint8)
    step = max(1, PIXELS_AT_ONCE // source.side**2)
    for start in range(0, len(sites), step):
        chosen = np.arange(start, min(start + step, len(sites)))
        picture = draw_pictures(patients, chosen, source.side)
        of_scanner = (scanners.gains, scanners.offsets, scanners.noises)
        gain, offset, noise = (
            values[sites[chosen], None, None].astype(np.float32) for values in of_scanner
        )
        grain = noise * generator.standard_normal(picture.shape, dtype=np.float32)
        taken = 0.5 + gain * (picture - 0.5) + offset + grain
        pixels[chosen, 0] = np.rint(255 * taken.clip(0, 1))
    return synthetic.synthetic_records(pixels, labels, log_odds, sites)


def draw_patients(count: int, generator: np.random.Generator) -> Patients:
    """Draw anatomy and opacities of `count` patients; every value is independent of the others."""
    size, shift = generator.standard_normal((2, count), dtype=np.float32)
    ribs, contrast, side, angle, distance, radius = generator.random((6, count), dtype=np.float32)
    lung = np.where(side < 0.5, np.float32(1), np.float32(-1))
    return Patients(size, shift, ribs, contrast, lung, angle, np.sqrt(distance), radius)


def draw_pictures(patients: Patients, chosen: npt.NDArray[np.int64], side: int) -> Pixels:
    """Draw the chests of some patients before acquisition: grey values, (M, side, side), about 0 to 1."""

    def of(values: Pixels) -> Pixels:
        return values[chosen, None, None]

    places = (np.arange(side, dtype=np.float32) + 0.5) / side - 0.5
    scale = 1 + 0.06 * of(patients.size)
    across = (places[None, None, :] - 0.02 * of(patients.shift)) / scale
    down = places[None, :, None] / scale
    # The two lungs mirror each other, so the distance from the midline serves both.
    from_midline = np.abs(across)
    inside = 1 - ((from_midline - LUNG_CENTER) / LUNG_WIDTH) ** 2 - (down / LUNG_HEIGHT) ** 2
    lung = expit(8 * inside)
    arcs = np.cos(2 * np.pi * (8 * (down + 1.5 * from_midline**2) + of(patients.ribs)))
    heart = np.exp(-(((across - 0.06) / 0.12) ** 2) - ((down - 0.12) / 0.16) ** 2)
    turn, reach = 2 * np.pi * of(patients.angle), 0.6 * of(patients.distance)
    blob_across = of(patients.lung) * (LUNG_CENTER + LUNG_WIDTH * reach * np.cos(turn))
    blob_down = LUNG_HEIGHT * reach * np.sin(turn)
    width = 0.06 + 0.04 * of(patients.radius)
    # A Gaussian in the plane is the product of one along each axis, which saves most of its
    # exponentials.
    blob = np.exp(-(((across - blob_across) / width) ** 2) / 2) * np.exp(
        -(((down - blob_down) / width) ** 2) / 2
    )
    return (
        TISSUE + lung * (LUNG + RIB * arcs) + HEART * heart + OPACITY * of(patients.contrast) * blob
    )
