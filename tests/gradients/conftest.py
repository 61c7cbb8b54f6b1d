from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional


def gradient_of(module, features, labels):
    parameters = [value for value in module.parameters() if value.requires_grad]
    loss = functional.cross_entropy(module(features).float(), labels, reduction="sum")
    gradients = torch.autograd.grad(loss, parameters)
    return torch.cat([gradient.reshape(-1) for gradient in gradients]).double()


def clipped(gradient, clip_norm):
    norm = gradient.norm().item()
    return gradient if norm <= clip_norm else gradient * (clip_norm / norm)


def clipped_sum(module, features, labels, clip_norm):
    rows = [clipped(gradient_of(module, features[i : i + 1], labels[i : i + 1]), clip_norm) for i in range(len(labels))]
    return torch.stack(rows).sum(0)


def assert_matches(found, expected, *, clip_norm, records):
    assert found.dtype == torch.float32
    scale = min(clip_norm * records, float(expected.norm()) + 1e-3)
    assert float((found.double() - expected).norm()) <= 2e-5 * scale


def randomise(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        value.data = torch.randn(value.shape, generator=generator) / max(1, value[:1].numel()) ** 0.5
    return module


@pytest.fixture(scope="session")
def one_by_one():
    """The definition that every engine must meet: one backward pass per record, clipped in float64."""
    return SimpleNamespace(
        gradient_of=gradient_of,
        clipped=clipped,
        clipped_sum=clipped_sum,
        assert_matches=assert_matches,
        randomise=randomise,
    )
