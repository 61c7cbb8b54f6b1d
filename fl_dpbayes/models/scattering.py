"""A fixed scattering transform: two layers of Morlet wavelets and moduli, then a local average.

Nothing is learned.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fft import fft2, ifft2
from torch.nn.functional import group_norm, pad

# Width of a wavelet of scale 1 and of the average of scale 1, in pixels.
WAVELET_WIDTH = 0.8
# Of a wavelet of scale 1, in radians a pixel.
CENTRE_FREQUENCY = 3 * math.pi / 4
# Periods of the padded image over which a filter is summed to make it periodic.
PERIODS = 2
# Paths (neighbouring angles) that are normalised together, and what is added to their variance:
# without it, an empty image would become amplified rounding error, and a path that hardly responds
# would weigh as much as one that does.
PATHS_PER_GROUP = 4
VARIANCE_FLOOR = 1e-4


@dataclass(frozen=True)
class Scattering:
    """Scattering coefficients of grey images of one size, of orders 0, 1 and 2.

        S0 = x * phi_J
        S1 = |x * psi_{j1,a1}| * phi_J                         0 <= j1 < J
        S2 = ||x * psi_{j1,a1}| * psi_{j2,a2}| * phi_J         j1 < j2 < J

    for angles a = 0 .. L - 1, sampled every 2^J pixels. A layer at scale j is kept at every 2^j-th
    pixel, as its spectrum is narrow; there the filter of scale i is that of scale i - j.

    Attributes:
        padding: Pixels by which an image is mirrored outwards (left, right, top, bottom).
        wavelets: Spectra of the wavelets by (resolution j, scale i), real, shape (L, height / 2^j,
            width / 2^j).
        averages: By resolution j, matrices of shapes (rows, height / 2^j) and (columns,
            width / 2^j).
        scales: J.

    Source:
        Bruna and Mallat, Invariant scattering convolution networks, PAMI 2013, section 2; Oyallon
        and Mallat, CVPR 2015.
    """

    padding: tuple[int, int, int, int]
    wavelets: dict[tuple[int, int], Tensor]
    averages: dict[int, tuple[Tensor, Tensor]]
    scales: int

    def __call__(self, images: Tensor) -> list[Tensor]:
        """Transform images; a record's coefficients depend on that record alone.

        Args:
            images: Shape (N, height, width), float32.

        Returns:
            Coefficients by group, a group being the paths of equal order and scales: order 0, then
            for each j1 its order 1 and the j2 > j1; shape (N, paths, rows, columns) each.
        """
        padded = pad(images[:, None], self.padding, mode="reflect")
        groups = [self._average(padded, resolution=0)]
        spectrum = fft2(padded)
        for first in range(self.scales):
            layer = _convolve(spectrum, self.wavelets[0, first], step=2**first).abs()[:, 0]
            groups.append(self._average(layer, resolution=first))
            if first + 1 == self.scales:
                break
            layer_spectrum = fft2(layer)
            for second in range(first + 1, self.scales):
                wavelets = self.wavelets[first, second]
                deeper = _convolve(layer_spectrum, wavelets, step=2 ** (second - first)).abs()
                groups.append(self._average(deeper.flatten(1, 2), resolution=second))
        return groups

    def _average(self, layer: Tensor, resolution: int) -> Tensor:
        rows, columns = self.averages[resolution]
        return rows @ (layer @ columns.T)


def scattering(
    height: int, width: int, *, scales: int, angles: int, device: str | torch.device = "cpu"
) -> Scattering:
    """Prepare the transform for images of one size.

    Args:
        height: In pixels, at least 2 * 2^scales.
        width: In pixels, at least 2 * 2^scales.
        scales: J, the number of octaves; coefficients are local averages over about 2^J pixels.
        angles: L, the number of orientations.
        device: Where the transform runs.

    Returns:
        The transform.
    """
    stride = 2**scales
    top, bottom = _margins(height, stride)
    left, right = _margins(width, stride)
    padded_height = top + height + bottom
    padded_width = left + width + right
    wavelets: dict[tuple[int, int], Tensor] = {}
    averages: dict[int, tuple[Tensor, Tensor]] = {}
    for resolution in range(scales):
        rows = padded_height >> resolution
        columns = padded_width >> resolution
        row_average = _averaging_matrix(rows, octaves=scales - resolution)
        column_average = _averaging_matrix(columns, octaves=scales - resolution)
        averages[resolution] = row_average.to(device), column_average.to(device)
        # Order 1 takes every scale at full resolution, order 2 a coarser scale than that of its
        # resolution.
        first_scale = resolution + 1 if resolution else 0
        for scale in range(first_scale, scales):
            spectra = [
                _morlet_spectrum(
                    rows, columns, scale=scale - resolution, number=number, angles=angles
                )
                for number in range(angles)
            ]
            wavelets[resolution, scale] = torch.stack(spectra).to(device)
    return Scattering(
        padding=(left, right, top, bottom), wavelets=wavelets, averages=averages, scales=scales
    )


def normalised(groups: list[Tensor]) -> Tensor:
    """Standardise each image's coefficients by that image alone, four neighbouring paths at a time.

        (s - mean(s)) / sqrt(var(s) + 1e-4)

    with mean and variance over the positions of four paths of equal order and scales (of the one
    path of order 0).

    Args:
        groups: What `Scattering` returns.

    Returns:
        Shape (N, D).

    Source:
        Wu and He, ECCV 2018; in front of a private head: Tramer and Boneh, ICLR 2021, section 2.
    """
    parts = [
        group_norm(group, max(1, group.shape[1] // PATHS_PER_GROUP), eps=VARIANCE_FLOOR)
        for group in groups
    ]
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def paths(scales: int, angles: int) -> int:
    """Return the number of paths of orders 0 to 2: 1 + J L + L^2 J (J - 1) / 2."""
    return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2


def sampled_size(size: int, scales: int) -> int:
    """Return how many rows (or columns) of coefficients an image of so many rows of pixels has."""
    return sum(_margins(size, 2**scales), size) // 2**scales - 2


def _margins(size: int, stride: int) -> tuple[int, int]:
    """Return margins of at least half a stride on each side, to a multiple of the stride."""
    padded = ((size + stride) // stride + 1) * stride
    before = (padded - size) // 2
    return before, padded - size - before


def _convolve(spectra: Tensor, wavelets: Tensor, step: int) -> Tensor:
    """Convolve images with wavelets and keep every step-th pixel.

    Keeping every step-th pixel is, in a spectrum, the mean of its step^2 blocks.

    Args:
        spectra: Of the images, shape (N, C, H, W).
        wavelets: Spectra, shape (L, H, W).
        step: In pixels.

    Returns:
        Shape (N, C, L, H / step, W / step).
    """
    height = spectra.shape[-2] // step
    width = spectra.shape[-1] // step
    total: Tensor | None = None
    for row in range(step):
        for column in range(step):
            rows = slice(row * height, (row + 1) * height)
            columns = slice(column * width, (column + 1) * width)
            factor = wavelets[..., rows, columns] / step**2
            term = spectra[..., rows, columns][:, :, None]
            total = term * factor if total is None else total.addcmul_(term, factor.to(term.dtype))
    return ifft2(total)


def _morlet_spectrum(height: int, width: int, scale: int, number: int, angles: int) -> Tensor:
    """Return the spectrum of a Morlet wavelet, made periodic; real, as the wavelet is Hermitian.

        psi(u) = g(u) (exp(i xi . u) - c)
        g(u) = exp(-|u'|^2 / (2 s^2)) slant / (2 pi s^2),    s = .8 * 2^j

    u' is u turned, its second coordinate times slant = 4 / L; |xi| = 3 pi / 4 / 2^j along it; c
    makes the mean zero.
    """
    angle = math.pi * number / angles
    width_pixels = WAVELET_WIDTH * 2**scale
    slant = 4 / angles
    frequency = CENTRE_FREQUENCY / 2**scale
    envelope = torch.zeros(height, width, dtype=torch.float64)
    wave = torch.zeros(height, width, dtype=torch.complex128)
    for row_period in range(-PERIODS, PERIODS + 1):
        for column_period in range(-PERIODS, PERIODS + 1):
            y = (torch.arange(height, dtype=torch.float64) + row_period * height)[:, None]
            x = (torch.arange(width, dtype=torch.float64) + column_period * width)[None, :]
            along = math.cos(angle) * x + math.sin(angle) * y
            across = slant * (math.cos(angle) * y - math.sin(angle) * x)
            gaussian = torch.exp(-(along**2 + across**2) / (2 * width_pixels**2))
            gaussian *= slant / (2 * math.pi * width_pixels**2)
            envelope += gaussian
            wave += gaussian * torch.exp(1j * frequency * along)
    wavelet = wave - envelope * (wave.sum() / envelope.sum())
    return fft2(wavelet).real.to(torch.float32)


def _averaging_matrix(size: int, octaves: int) -> Tensor:
    """Return rows that average a padded line, one row per 2^J pixels inside the margin.

        phi(u) = exp(-u^2 / (2 s^2)) / sum,    s = .4 * 2^J pixels

    made periodic; in two dimensions phi is the product over both axes.
    """
    stride = 2**octaves
    width_pixels = WAVELET_WIDTH * stride / 2
    centres = torch.arange(stride, size - stride, stride, dtype=torch.float64)[:, None]
    pixels = torch.arange(size, dtype=torch.float64)[None, :]
    total = torch.zeros(len(centres), size, dtype=torch.float64)
    for period in range(-PERIODS, PERIODS + 1):
        offset = pixels - centres + period * size
        total += torch.exp(-(offset**2) / (2 * width_pixels**2))
    return (total / total.sum(dim=1, keepdim=True)).to(torch.float32)
