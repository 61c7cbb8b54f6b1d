import math

import pytest
import torch

from fl_dpbayes.gradients.loss import summed_cross_entropy


def test_sum_over_records_by_hand():
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    assert summed_cross_entropy(logits, torch.tensor([0, 1])).item() == pytest.approx(-math.log(0.75) - math.log(0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_lose_nothing_more(dtype):
    logits = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.zeros(100, dtype=torch.int64)
    assert summed_cross_entropy(logits, labels) == summed_cross_entropy(logits.float(), labels)
