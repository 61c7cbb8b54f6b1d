"""What server and clients share: model, plan, budget, and the digits, dealt to four sites."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import fl_dpbayes as fl

SITES = 4
PRIVACY = fl.Privacy(epsilon=4, delta=1e-3, clip_norm=4, sampling_rate=0.2)
SAMPLER = fl.DPSGLD(step_size=0.5)
ROUNDS = 5


def make_net() -> nn.Module:
    """Return the model, at the same start everywhere."""
    net = nn.Linear(64, 10)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return net


def records(part: int, parts: int = SITES + 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and labels of one part; the last part is held out."""
    features, labels = load_digits(return_X_y=True)
    # 16 is the greatest grey level that there can be: a public constant.
    return torch.tensor(features[part::parts] / 16, dtype=torch.float32), torch.tensor(
        labels[part::parts]
    )
