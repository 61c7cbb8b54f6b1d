"""A private chain on one's own records, in one go and stretch by stretch from a position that survives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fl_dpbayes as fl
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.samplers.chain import ChainDivergedError
from tests.models.test_own_module import ActNorm

FEATURES = torch.randn((400, 3), generator=torch.Generator().manual_seed(0))
LABELS = (FEATURES[:, 0] > 0).long()
PRIVACY = fl.Privacy(epsilon=2, delta=1e-3, coupling="constant")


def planned(position: dict[str, Any] | Path | None = None, **plan: Any) -> fl.PrivateChain:
    plan = {"rounds": 3, "steps_per_round": 4, "burn_in": 0, "thinning": 2} | plan
    return fl.PrivateChain(nn.Linear(3, 2), (FEATURES, LABELS), PRIVACY, position=position, **plan)


@pytest.mark.slow
def test_a_module_and_a_dataset_become_a_private_posterior_in_one_call() -> None:
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    release = fl.private_chain(module, TensorDataset(FEATURES, LABELS), PRIVACY)
    assert (release.predict_proba(FEATURES).argmax(axis=1) == LABELS.numpy()).mean() > 0.9
    assert release.samples.arrays["weight"].shape == (20, 2, 3)
    assert torch.equal(module.weight, before)
    assert (release.privacy.units, release.privacy.steps) == (400, 200)
    assert 1.99 < release.privacy.epsilon <= 2
    # Records as lists, as many as they have features: neither is taken for the other.
    assert (
        fl.private_chain(
            module, [([0.0] * 3, 1)] * 3, fl.Privacy(epsilon=4, delta=0.1)
        ).privacy.units
        == 3
    )
    posterior = fl.private_chain(module, (FEATURES, LABELS), fl.Privacy(epsilon=4, delta=1e-3))
    assert posterior.temperature == pytest.approx(1)
    again = fl.private_chain(module, (FEATURES, LABELS), PRIVACY)
    assert not np.array_equal(again.last["weight"], release.last["weight"])
    assert planned(units=np.repeat(np.arange(40), 10)).advance().privacy.units == 40


@pytest.mark.parametrize("kept", ["record", "file"])
def test_the_position_survives_and_a_repeated_round_is_the_next_stretch(
    kept: str, tmp_path: Path
) -> None:
    position: Any = {} if kept == "record" else tmp_path / "position.json"
    start = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
    released = [planned(position).advance(start) for _ in range(3)]
    assert [release.privacy.steps for release in released] == [4, 8, 12]
    assert (
        released[0].privacy.epsilon < released[1].privacy.epsilon < released[2].privacy.epsilon <= 2
    )
    assert {release.privacy.epsilon_planned for release in released} == {
        released[2].privacy.epsilon
    }
    with pytest.raises(UserError, match="all 12 planned steps are spent"):
        planned(position).advance(start)
    for other in ({"rounds": 4}, {"units": np.arange(400)}):
        with pytest.raises(UserError, match="another plan"):
            planned(position, **other).advance(start)
    if kept == "file":
        with folder_lock(tmp_path), pytest.raises(UserError, match="another process"):
            planned(position).advance(start)
        position.write_text(position.read_text().replace('"steps": 12', '"steps": 4'))
        with pytest.raises(ValueError, match="changed since"):
            planned(position).advance(start)


def test_what_fails_is_spent_and_says_nothing_of_the_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    position: dict[str, Any] = {}
    with pytest.raises(ChainDivergedError):
        planned(position, sampler=SGLD(step_size=ConstantStepSize(initial=1e20))).advance()
    assert position["steps"] == 4
    position = {}

    class Quoting(list):
        def __getitem__(self, *_: Any) -> None:
            raise IndexError("record 17 of Mrs Smith")

    with monkeypatch.context() as patch:
        patch.setattr("fl_dpbayes.api.private_chain.run_chain", lambda *_: Quoting()[0])
        for failing in (
            planned(position).advance,
            lambda: fl.private_chain(nn.Linear(3, 2), Quoting("a"), PRIVACY),
        ):
            with pytest.raises(RuntimeError, match="see the log") as caught:
                failing()
            assert "Smith" not in str(caught.value)
            assert caught.value.__suppress_context__
    assert position["steps"] == 4
    for start in (
        {"weight": np.full((2, 3), np.nan), "bias": np.zeros(2)},
        {"weight": np.zeros((3, 2))},
    ):
        with pytest.raises(ValueError, match=r"not finite|has shape"):
            planned(position).advance(start)
    assert position["steps"] == 4


REFUSED: dict[str, dict[str, Any]] = {
    "GroupNorm": {"module": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))},
    "keeps something of the records": {"module": ActNorm(3, 2)},
    "a label must name one": {"module": nn.Linear(3, 1)},
    "below 1 / 400": {"privacy": fl.Privacy(epsilon=2, delta=0.01)},
    "one for each record": {"units": np.zeros(3)},
    "below 1 / 487.5": {"privacy": fl.Privacy(epsilon=2, delta=0.0022), "declared": 390},
    r"^300 units: there .* and the declared number right to a fifth$": {"declared": 300},
    "give more noise": {"privacy": fl.Privacy(epsilon=0.1, delta=1e-3, noise_multiplier=0.5)},
    # Its noise is not in units of a clip norm, so no finite epsilon holds.
    "needs a budget": {"privacy": fl.NoPrivacy(noise_standard_deviation=5)},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_does_not_fit_is_refused_before_a_step(said: str) -> None:
    with pytest.raises(UserError, match=said):
        fl.PrivateChain(
            **{"module": nn.Linear(3, 2), "data": (FEATURES, LABELS), "privacy": PRIVACY}
            | REFUSED[said]
        )
