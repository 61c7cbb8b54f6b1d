"""Modules whose layers are used twice, or read outside of their own forward pass."""

import torch
from torch import nn


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, features):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(features)))))


class ReadElsewhere(Twice):
    def forward(self, features):
        return self.head(torch.tanh(self.layer(features))) + (features @ self.layer.weight)[:, :3]
