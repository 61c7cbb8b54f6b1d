"""Opacus 1.6 accounts by our privacy-loss distributions."""

import json
from pathlib import Path

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl_dpbayes as fl

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "accounting.json").read_text(encoding="utf-8"))["settings"]


@pytest.mark.parametrize("name", sorted(name for name, setting in GOLDEN.items() if "segments" in setting))
def test_epsilon_is_the_golden_one(name: str) -> None:
    fl.register_opacus_accountant()
    golden, accountant = GOLDEN[name], create_accountant("pld")
    accountant.history = [tuple(segment) for segment in golden["segments"]]
    epsilon = accountant.get_epsilon(golden["delta"])
    assert (1 - 1e-4) * golden["pld_pess_eps"] <= epsilon <= (1 + 2.5e-5) * golden["pld_pess_eps"]
    assert len(accountant) == golden["steps"]


# Opacus warns of its own generator and of hooks.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_privacy_engine_uses_it_to_choose_the_noise_and_to_say_what_was_spent() -> None:
    fl.register_opacus_accountant()
    module, data = nn.Linear(2, 2), TensorDataset(torch.randn(100, 2), torch.zeros(100).long())
    engine = PrivacyEngine(accountant="pld")
    module, optimizer, loader = engine.make_private_with_epsilon(
        module=module, optimizer=torch.optim.SGD(module.parameters(), 0.1), data_loader=DataLoader(data, batch_size=20),
        target_epsilon=2.0, target_delta=1e-3, epochs=2, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(2):
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features), labels).backward()
            optimizer.step()
    assert len(engine.accountant) == 10
    assert 1.9 < engine.get_epsilon(1e-3) <= 2.0
