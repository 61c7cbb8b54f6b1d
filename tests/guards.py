"""Modules whose rows meet only when something in the batch is large: guards against overflow."""

import numpy as np
import torch
from torch import Tensor, nn

WIDTH, CLASSES = 6, 3


def over_largest(h: Tensor) -> Tensor:
    return h / (h.abs().max() / 65504).clamp(min=1)


def to_largest(h: Tensor) -> Tensor:
    return h * (1e3 / h.abs().max()).clamp(max=1)


def to_norm(h: Tensor) -> Tensor:
    return h * (1e3 / h.norm()).clamp(max=1)


def shifted_before_exp(h: Tensor) -> Tensor:
    return (h - (h.max() - 80).clamp(min=0)).exp()


def centred_where_large(h: Tensor) -> Tensor:
    return torch.where(h.abs() > 1e4, (h - h.mean(0)) / (h.std(0, correction=0) + 1), h)


def below_running_largest(h: Tensor) -> Tensor:
    return 1e4 * h / h.abs().cummax(0).values.clamp(min=1e4)


def sorted_where_large(h: Tensor) -> Tensor:
    return torch.where(h.abs() > 1e4, h.sort(0).values, h)


def without_largest_row(h: Tensor) -> Tensor:
    top = h.index_select(0, h.abs().sum(1).argmax(0, keepdim=True))
    return h - torch.where(top.abs() > 1e4, top, 0.0)


def to_mean_in_half_precision(h: Tensor) -> Tensor:
    return h * (6e4 / h.mean().abs()).clamp(max=1).half().to(h.dtype)


def of_all_entries(h: Tensor) -> Tensor:
    return (h.view(-1) / (h.view(-1).square().mean().sqrt() / 1e3).clamp(min=1)).view(h.shape)


# What takes the records, and by what the server scales the weights of the first and the last layer.
GUARDS = {
    over_largest: ("swallowing", 1e5, 1e-3),
    to_largest: ("embedding", 1e6, 0.1),
    to_norm: ("embedding", 1e4, 1e4),
    shifted_before_exp: ("swallowing", 1e2, 1e-10),
    to_mean_in_half_precision: ("embedding", 1e8, 1e-4),
    of_all_entries: ("embedding", 1e4, 1e3),
    centred_where_large: ("swallowing", 1e6, 1e6),
    below_running_largest: ("swallowing", 1e4, 1e-2),
    sorted_where_large: ("embedding", 1e7, 1e7),
    without_largest_row: ("swallowing", 1e4, 1e-10),
}


class Guarded(nn.Module):
    """Two layers with a guard between them, behind an embedding or behind what swallows values without bound."""

    def __init__(self, guard) -> None:
        super().__init__()
        self.guard, self.takes = guard, GUARDS[guard][0]
        self.first = (
            nn.Embedding(8, WIDTH) if self.takes == "embedding" else nn.Linear(WIDTH, WIDTH)
        )
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        if self.takes == "embedding":
            rows = (rows[:, 0].clamp(-2, 2) * 2 + 4).long().clamp(0, 7)
        else:
            rows = rows.nan_to_num(0.0, 0.0, 0.0).clamp(-3, 3)
        return self.last(self.guard(self.first(rows)))


def awake(guard) -> Guarded:
    """Return a module under the weights of a server that wakes its guard."""
    module = Guarded(guard)
    generator = torch.Generator().manual_seed(0)
    takes, before, behind = GUARDS[guard]
    for name, value in module.named_parameters():
        scale = before if name.startswith("first") else behind
        value.data = torch.randn(value.shape, generator=generator) * scale
    if takes == "embedding":
        # The last word is far larger than all others.
        module.first.weight.data[:7] *= 1e-2
    return module


def newcomer_and_others(guard, others: int) -> np.ndarray:
    """Return records (1 + others, width) of which the first is large."""
    generator = np.random.default_rng(0)
    records = 0.02 * generator.standard_normal((others + 1, WIDTH))
    records[0] = 3 * np.sign(generator.standard_normal(WIDTH))
    if GUARDS[guard][0] == "embedding":
        records[:, 0] = np.append(2.0, generator.uniform(-2.0, -0.3, others))
    return records.astype(np.float32)
