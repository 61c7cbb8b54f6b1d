"""What the severities 1 to 5 of each image shift mean, per resolution."""

from fl_dpbayes.config.data import ImageShift

Ladder = tuple[float, float, float, float, float]

# Sides from which on an image counts as the resolution below; 8 and 28 pixels are those of digits and MNIST.
SMALL_BELOW, MIDDLE_BELOW = 16, 112

SEVERITIES: dict[ImageShift, dict[int, Ladder]] = {
    # Exponent, below 1: brighter; MedMNIST-C gamma_down.
    "gamma": dict.fromkeys((8, 28, 224), (0.9, 0.8, 0.7, 0.6, 0.4)),
    # Exponent, above 1: darker; MedMNIST-C gamma_up.
    "gamma_dark": dict.fromkeys((8, 28, 224), (1.1, 1.2, 1.3, 1.4, 1.6)),
    # Factor about the image's mean; MedMNIST-C contrast_down.
    "contrast": dict.fromkeys((8, 28, 224), (0.9, 0.8, 0.7, 0.6, 0.4)),
    # Expected quanta in a white pixel; 28: CIFAR-C shot noise, 224: MedMNIST-C.
    "exposure": {
        8: (300.0, 200.0, 100.0, 50.0, 25.0),
        28: (500.0, 250.0, 100.0, 75.0, 50.0),
        224: (300.0, 200.0, 150.0, 100.0, 80.0),
    },
    # Standard deviation; 28: CIFAR-C gaussian noise, 224: MedMNIST-C.
    "detector_noise": {
        8: (0.05, 0.10, 0.15, 0.20, 0.25),
        28: (0.04, 0.06, 0.08, 0.09, 0.10),
        224: (0.04, 0.05, 0.06, 0.07, 0.08),
    },
    # Standard deviation in pixels; 28: CIFAR-C, 224: MedMNIST-C.
    "blur": {
        8: (0.4, 0.5, 0.6, 0.7, 0.8),
        28: (0.4, 0.6, 0.7, 0.8, 1.0),
        224: (0.8, 1.1, 1.4, 1.7, 2.0),
    },
    # Share of the pixels left along each side; 224: MedMNIST-C pixelate.
    "resolution": {
        8: (0.875, 0.75, 0.625, 0.5, 0.375),
        28: (0.9, 0.8, 0.7, 0.6, 0.5),
        224: (0.8, 0.7, 0.6, 0.5, 0.4),
    },
    # Quality; 28: CIFAR-C, 224: MedMNIST-C.
    "jpeg": {
        8: (60.0, 40.0, 25.0, 15.0, 8.0),
        28: (80.0, 65.0, 58.0, 50.0, 40.0),
        224: (50.0, 30.0, 15.0, 10.0, 7.0),
    },
    # Share of the images.
    "inversion": dict.fromkeys((8, 28, 224), (0.1, 0.25, 0.5, 0.75, 1.0)),
    # Thickness as a share of the shorter side.
    "border": {
        8: (0.05, 0.10, 0.15, 0.20, 0.25),
        28: (0.03, 0.06, 0.09, 0.12, 0.15),
        224: (0.03, 0.06, 0.09, 0.12, 0.15),
    },
    # Opacity of the letter.
    "marker": dict.fromkeys((8, 28, 224), (0.2, 0.4, 0.6, 0.8, 1.0)),
    # Bound of the coefficients of the log field; the last is TorchIO's default.
    "bias_field": dict.fromkeys((8, 28, 224), (0.1, 0.2, 0.3, 0.4, 0.5)),
    # Degrees.
    "rotation": {
        8: (4.0, 8.0, 12.0, 16.0, 20.0),
        28: (2.0, 4.0, 6.0, 8.0, 10.0),
        224: (2.0, 4.0, 6.0, 8.0, 10.0),
    },
}


def image_severity(kind: ImageShift, severity: int, side: int) -> float:
    """Look up what a severity means at a resolution.

    Args:
        kind: an image shift.
        severity: 1 to 5.
        side: the image's shorter side in pixels.

    Returns:
        Exponent, factor, dose, standard deviation, share, quality, opacity, bound or angle, as the kind needs.

    Source: MedMNIST-C, arXiv 2406.17536; CIFAR-C, Hendrycks and Dietterich 2019. The values at 8 pixels and those of
    inversion, border, marker, bias field, rotation and, at 28 pixels, resolution are this project's.
    """
    resolution = 8 if side < SMALL_BELOW else 28 if side < MIDDLE_BELOW else 224
    return SEVERITIES[kind][resolution][severity - 1]
