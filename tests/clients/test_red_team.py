"""Faults that a red team found, each of which one bad message caused."""

import numpy as np
import pytest
from flwr.app import Array

from fl_dpbayes.config.task import ScatteringFeatures, StrokeProjection
from fl_dpbayes.models.feature_map import feature_shape
from tests.asking import refused

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

LONG = "training={rounds=2, steps_per_round=6, burn_in=0, thinning=1}"


@pytest.mark.parametrize("rule", ["consensus-diagonal", "product-diagonal", "fedpa"])
def test_constant_samples_of_one_site_leave_the_others_their_posterior(
    federation, rule: str
) -> None:
    def constant(reply):
        sent = reply.content["arrays"]
        samples = {
            name: array.numpy() for name, array in sent.items() if name.startswith("samples/")
        }
        sent.update(
            {
                name: Array(np.repeat(values[:1], len(values), axis=0))
                for name, values in samples.items()
            }
        )
        return reply

    run = federation(LONG, "sampler.prior.kind=gaussian", f"aggregation.rule={rule}")
    run.spoil(constant, sites=("east",))
    assert {row["predictor"] for row in run.run().summary()["calibration"]} == {"last", "posterior"}


def test_projection_that_would_fill_memory_is_refused() -> None:
    large = ScatteringFeatures(projection=StrokeProjection(characters=5000, copies=8))
    refused("too much memory", feature_shape, large, (1, 64, 64))
    assert feature_shape(ScatteringFeatures(projection=StrokeProjection()), (1, 28, 28)) == (200,)
