"""Opacus 1.6 accounts by our privacy-loss distributions."""

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl_dpbayes as fl
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon


# Opacus warns of its own generator and of hooks.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_privacy_engine_uses_it_to_choose_the_noise_and_to_say_what_was_spent() -> None:
    fl.register_opacus_accountant()
    module, data = nn.Linear(2, 2), TensorDataset(torch.randn(100, 2), torch.zeros(100).long())
    engine = PrivacyEngine(accountant="pld")
    module, optimizer, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), 0.1),
        data_loader=DataLoader(data, batch_size=20),
        target_epsilon=2.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=1.0,
    )
    for _ in range(2):
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features), labels).backward()
            optimizer.step()
    assert 1.9 < engine.get_epsilon(1e-3) <= 2.0
    assert engine.get_epsilon(1e-3) == pld_epsilon(
        (GaussianEvent(optimizer.noise_multiplier, 0.2, 10),), 1e-3
    )
