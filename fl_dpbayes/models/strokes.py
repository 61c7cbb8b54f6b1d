"""Made-up handwriting: random pen strokes, drawn several times each with the wobble of a hand.

No record enters. What is fitted to these pictures is a public constant, like a wavelet, and costs no privacy.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

POINTS_PER_STROKE = 48
MOST_STROKES = 3
# Of a character's box, as in the usual 28-pixel picture of a digit in a 20-pixel box.
BOX_SHARE = 19 / 28
PEN_WOBBLE = 0.05
ROTATION, SHEAR, LOG_ASPECT = 0.15, 0.2, 0.12
OFFSET_PIXELS = 0.3
# Half the width of the pen, in pixels of a 28-pixel picture.
PEN_RADIUS = (0.8, 2.0)


def draw_strokes(characters: int, copies: int, side: int, generator: np.random.Generator) -> npt.NDArray[np.float32]:
    """Draw characters of one to three connected cubic Bezier strokes, each several times.

    A copy moves every control point by N(0, .05^2), turns, shears and stretches the character, and draws it with a pen
    of its own width, its box 19/28 of the picture and its points' mean at the centre.

    Args:
        characters: how many different ones.
        copies: how often each is drawn.
        side: height and width of a picture in pixels.
        generator: of all choices.

    Returns:
        Grey levels in [0, 1], shape (characters, copies, side, side).
    """
    pictures = np.zeros((characters, copies, side, side), np.float32)
    for number in range(characters):
        strokes = _strokes(generator)
        for copy in range(copies):
            points = _as_written(strokes, generator) * BOX_SHARE * side
            points += (side - 1) / 2 + generator.normal(0.0, OFFSET_PIXELS, 2) - points.mean(axis=0)
            pictures[number, copy] = _inked(points, generator.uniform(*PEN_RADIUS) * side / 28, side)
    return pictures


def _strokes(generator: np.random.Generator) -> Array:
    """Choose control points (strokes, 4, 2); each stroke starts on the last one, half of them at its end."""
    strokes, start = [], generator.uniform(0.0, 1.0, 2)
    for _ in range(int(generator.integers(1, MOST_STROKES + 1))):
        controls = np.vstack([start, generator.uniform(-0.15, 1.15, (3, 2))])
        points = _bezier(controls)
        strokes.append(controls)
        start = points[generator.integers(len(points))] if generator.random() < 0.5 else controls[3]
    return np.stack(strokes)


def _bezier(controls: Array) -> Array:
    """Points of cubic Bezier curves: b(t) = (1-t)^3 c0 + 3 t (1-t)^2 c1 + 3 t^2 (1-t) c2 + t^3 c3."""
    t = np.linspace(0.0, 1.0, POINTS_PER_STROKE)
    basis = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    return basis @ controls


def _as_written(strokes: Array, generator: np.random.Generator) -> Array:
    """Write a character once: points (P, 2) in a box whose longer side is 1."""
    points = _bezier(strokes + generator.normal(0.0, PEN_WOBBLE, strokes.shape)).reshape(-1, 2)
    angle, shear = generator.normal(0.0, ROTATION), generator.normal(0.0, SHEAR)
    stretch = np.exp(generator.normal(0.0, LOG_ASPECT))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = points @ rotation @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag([stretch, 1 / stretch])
    lowest, highest = points.min(axis=0), points.max(axis=0)
    return (points - lowest) / max(float((highest - lowest).max()), 1e-3)


def _inked(points: Array, radius: float, side: int) -> npt.NDArray[np.float32]:
    """Ink every pixel near a point: grey = clip(radius + 1/2 - distance, 0, 1)."""
    rows = (points[:, 0, None] - np.arange(side)) ** 2
    columns = (points[:, 1, None] - np.arange(side)) ** 2
    distance = np.sqrt((rows[:, :, None] + columns[:, None, :]).min(axis=0))
    return np.clip(radius + 0.5 - distance, 0.0, 1.0).astype(np.float32)
