import pytest
import torch

from fl_dpbayes.samplers.noisy_gradient import private_drift


def drift_of(**more):
    settings = {
        "noise": torch.tensor([1.5, -0.5]),
        "noise_multiplier": 2.0,
        "noise_unit": 0.5,
        "expected_batch_size": 4.0,
        "data_free_gradient": torch.tensor([2.0, -1.0]),
        "units": 20,
    }
    return private_drift(torch.tensor([3.0, 0.5]), **(settings | more))


def test_drift_is_the_formula_by_hand():
    # (G + sigma C xi) / B - (s / n) grad log p
    expected = [(3.0 + 2.0 * 0.5 * 1.5) / 4 + 2.0 / 20, (0.5 + 2.0 * 0.5 * -0.5) / 4 - 1.0 / 20]
    torch.testing.assert_close(drift_of(), torch.tensor(expected))


def test_no_noise_and_no_prior_is_the_mean_gradient_bit_for_bit_limit():
    found = drift_of(noise=torch.full((2,), 1e30), noise_multiplier=0.0, data_free_gradient=torch.zeros(2))
    assert torch.equal(found, torch.tensor([3.0, 0.5]) / 4.0)


@pytest.mark.parametrize("name", ["noise", "data_free_gradient"])
def test_inputs_are_left_as_they_are(name):
    given = torch.tensor([1.0, 2.0])
    drift_of(**{name: given})
    assert torch.equal(given, torch.tensor([1.0, 2.0]))
