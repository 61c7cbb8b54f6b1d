"""Rounding for transport changes predictions as little as its bits allow."""

import numpy as np
import pytest

from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import build_model, model_shapes
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.run.bench.transport import transport_effect

TASK, MODEL = Task(input_shape=(8,), classes=3), MLPModel(hidden=(16,))


@pytest.mark.parametrize(
    ("precision", "share", "largest"), [("float32", 1.0, 0.0), ("bfloat16", 0.5, 0.01), ("int8", 0.25, 0.02)]
)
def test_effect_on_predictions(precision, share, largest):
    generator = np.random.default_rng(0)
    arrays = {
        name: generator.standard_normal((30, *shape)).astype(np.float32)
        for name, shape in model_shapes(MODEL, TASK).items()
    }
    samples = PosteriorSamples(arrays, np.ones(30), np.ones(30))
    features = generator.standard_normal((200, 8)).astype(np.float32)
    labels = generator.integers(0, 3, 200)
    effect = transport_effect(build_model(MODEL, TASK, seed=0), samples, features, labels, precision)
    assert effect.sample_bytes / sum(array.nbytes for array in arrays.values()) == pytest.approx(share, abs=0.03)
    assert effect.total_variation <= effect.largest_total_variation <= largest
    assert (effect.total_variation > 0) == (precision != "float32")
