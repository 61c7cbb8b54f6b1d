import math

import pytest
import torch

from fl_dpbayes.samplers.gradients import loss
from fl_dpbayes.samplers.gradients.loss import mean_over_draws, summed_cross_entropy


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_lose_nothing_more(dtype):
    logits = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.zeros(100, dtype=torch.int64)
    assert summed_cross_entropy(logits, labels) == summed_cross_entropy(logits.float(), labels)


def test_gaussian_likelihood_by_hand():
    outputs = torch.tensor([[1.0, math.log(4.0)], [0.0, 0.0]])
    found = loss.summed_gaussian_negative_log_likelihood(outputs, torch.tensor([3.0, 0.5]))
    expected = (math.log(4.0) + 1.0 + 0.25) / 2 + math.log(2 * math.pi)
    assert found.item() == pytest.approx(expected)


def test_draws_are_averaged_for_each_record():
    outputs = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 4, 2, 2])
    by_draw = [summed_cross_entropy(outputs[:, draw], labels).item() for draw in range(3)]
    assert mean_over_draws(summed_cross_entropy)(outputs, labels).item() == pytest.approx(
        sum(by_draw) / 3
    )
