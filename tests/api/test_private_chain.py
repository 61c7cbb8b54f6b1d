"""A private chain on one's own records, in one go and stretch by stretch from a position that survives."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import fl_dpbayes as fl
from fl_dpbayes.api.labelled_records import labelled_arrays
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.predict.run_posterior import RunPosterior
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
            with pytest.raises(RuntimeError, match=r"may quote|see the log") as caught:
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


@pytest.fixture(scope="module")
def release() -> fl.ChainRelease:
    return planned(rounds=1).advance()


def test_a_release_is_short_to_look_at_and_says_what_was_not_spent(release) -> None:
    assert repr(release).startswith("2 posterior samples of 8 parameters at temperature ")
    assert "; epsilon 2 at delta 0.001, after 4 steps on 400 units" in repr(release)
    assert "budget" not in repr(release)
    cool = fl.Privacy(epsilon=100, delta=1e-3)
    spared = fl.private_chain(nn.Linear(3, 2), (FEATURES, LABELS), cool, steps_per_round=10)
    assert "the budget of 100 is not used up, as temperature" in repr(spared)
    assert "the whole plan costs 2" in repr(planned().advance())


@pytest.mark.parametrize(
    "method",
    [
        fl.Run.predict_proba,
        RunPosterior.to_arviz,
        fl.ChainRelease.predict_proba,
        fl.ChainRelease.to_arviz,
    ],
)
def test_help_says_that_spread_under_constant_noise_is_no_uncertainty(method) -> None:
    assert "the privacy noise and is not the posterior's uncertainty" in " ".join(
        method.__doc__.split()
    )


def test_samples_are_states_of_the_module(release) -> None:
    module = nn.Linear(3, 2)
    for sample in release:
        module.load_state_dict(sample)
    assert torch.equal(module.weight, torch.tensor(release.samples.arrays["weight"][-1]))
    assert len(release) == len(release.samples) == 2
    with pytest.raises(IndexError):
        release[2]


@pytest.mark.filterwarnings("ignore:\nArviZ is undergoing:FutureWarning")
def test_a_release_goes_to_arviz_and_through_a_file(release, tmp_path: Path) -> None:
    pytest.importorskip("arviz")
    release.save(tmp_path / "chain.safetensors")
    loaded = fl.ChainRelease.load(tmp_path / "chain.safetensors", nn.Linear(3, 2))
    for one in (release, loaded):
        posterior = one.to_arviz().posterior["weight"].to_numpy()
        assert np.array_equal(posterior[0], release.samples.arrays["weight"])
    assert (loaded.metrics, repr(loaded)) == (release.metrics, repr(release))
    assert np.array_equal(loaded.last["bias"], release.last["bias"])
    assert np.array_equal(loaded.predict_proba(FEATURES), release.predict_proba(FEATURES))
    with pytest.raises(UserError, match=r"samples of bias \(2,\), .* give the module"):
        fl.ChainRelease.load(tmp_path / "chain.safetensors", nn.Linear(2, 2))
    (tmp_path / "other").write_text("no such file")
    for path in (tmp_path / "other", tmp_path / "absent"):
        with pytest.raises(UserError, match="is no file that a release's save wrote"):
            fl.ChainRelease.load(path, nn.Linear(3, 2))


def test_a_stretch_without_a_sample_says_so_and_can_be_kept(tmp_path: Path) -> None:
    planned(burn_in=4).advance().save(tmp_path / "burn-in.safetensors")
    empty = fl.ChainRelease.load(tmp_path / "burn-in.safetensors", nn.Linear(3, 2))
    assert (len(empty), empty.last["weight"].shape) == (0, (2, 3))
    for use in (empty.to_arviz, lambda: empty.predict_proba(FEATURES)):
        with pytest.raises(UserError, match="kept no posterior sample: lower burn_in"):
            use()


def test_without_arviz_it_says_what_to_install(release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(UserError, match=r"pip install 'fl-dpbayes\[arviz\]'"):
        release.to_arviz()


class Padded(TensorDataset):
    """Records of which the second half of the features is made by the loader."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        features, label = super().__getitem__(index)
        return features[:2], label


def joined(records: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    features = torch.stack([features for features, _ in records])
    return nn.functional.pad(features, (0, 1)), torch.stack([label for _, label in records])


DATA_SET = TensorDataset(FEATURES, LABELS)
TAKEN = {
    "a data set": DATA_SET,
    "a subset": Subset(DATA_SET, range(400)),
    "pairs": list(DATA_SET),
    "lists": (FEATURES.tolist(), LABELS.tolist()),
    "a shuffling loader": DataLoader(DATA_SET, batch_size=7, shuffle=True, drop_last=True),
}


@pytest.mark.filterwarnings("ignore:a DataLoader's data set")
@pytest.mark.parametrize("name", TAKEN)
def test_data_sets_and_loaders_are_read_in_their_order(name: str) -> None:
    arrays = labelled_arrays(TAKEN[name])
    assert arrays.features == pytest.approx(FEATURES.numpy())
    assert np.array_equal(arrays.labels, LABELS.numpy())


def test_a_loader_joins_its_records_and_says_that_its_batches_are_not_used() -> None:
    with pytest.warns(UserWarning, match="batch size and shuffling are not used"):
        arrays = labelled_arrays(DataLoader(Padded(FEATURES, LABELS), collate_fn=joined))
    assert np.array_equal(arrays.features[:, :2], FEATURES[:, :2].numpy())
    assert not arrays.features[:, 2].any()


GIVE = r": give \(features, labels\) as a tuple"
NOT_TAKEN: dict[str, Any] = {
    "the data are a Tensor" + GIVE: FEATURES,
    "the data are a dict" + GIVE: {"features": FEATURES},
    "the data are a str" + GIVE: "records",
    "the data are a generator" + GIVE: (record for record in DATA_SET),
    "the data are 1 arrays" + GIVE: (FEATURES,),
    "the data set holds no record" + GIVE: [],
    r"the data set's records are no \(features, label\)" + GIVE: TensorDataset(FEATURES),
    "the data set's records differ in shape" + GIVE: [(FEATURES, LABELS), (FEATURES[0], LABELS)],
    "the labels are of type float32: give one whole number": (FEATURES, FEATURES[:, 0]),
    "the features are of type <U1: give numbers": (np.array([["a"]]), [0]),
    "of 2 dimensions, labels of 1, or they differ in length": (FEATURES, LABELS[:3]),
    r"give its data set, or torch.utils.data.Subset\(dataset, indices\)": DataLoader(
        DATA_SET, sampler=SubsetRandomSampler(range(9))
    ),
    "sampler chooses among the records": DataLoader(
        DATA_SET, sampler=RandomSampler(DATA_SET, num_samples=9)
    ),
}


@pytest.mark.parametrize("said", NOT_TAKEN)
def test_other_data_are_refused_with_what_to_pass_and_no_number_of_records(said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        fl.private_chain(nn.Linear(3, 2), NOT_TAKEN[said], PRIVACY)
    assert "400" not in str(error.value)


def test_one_call_refuses_rounds_that_nothing_would_run_before_it_spends() -> None:
    position: dict[str, Any] = {}
    with pytest.raises(
        UserError, match=r"rounds is 10: .* write steps_per_round=300, or .*advance"
    ):
        fl.private_chain(
            nn.Linear(3, 2),
            (FEATURES, LABELS),
            PRIVACY,
            position=position,
            rounds=10,
            steps_per_round=30,
        )
    assert not position


def test_a_budget_shows_what_was_named_and_is_needed_beside_noise() -> None:
    assert repr(fl.Privacy(epsilon=4, delta=1e-4)) == "Privacy(epsilon=4.0, delta=0.0001)"
    assert repr(PRIVACY) == "Privacy(epsilon=2.0, delta=0.001, coupling='constant')"
    with pytest.raises(UserError, match=r"'epsilon' is missing: .* beside noise_multiplier: write"):
        fl.Privacy(noise_multiplier=1.1, delta=1e-4)


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
    r"privacy is 2.0: .* write fl.Privacy\(epsilon=2.0, delta=1e-3\)": {"privacy": 2.0},
    "module is .*: give a torch module that was built": {"module": nn.Linear},
    r"no 'noise_multiplier': write privacy=fl.Privacy\(noise_multiplier=": {"noise_multiplier": 1},
    r"no 'batch_size': write privacy=fl.Privacy\(sampling_rate=": {"batch_size": 7},
    r"no 'sample_rate': write privacy=fl.Privacy\(sampling_rate=": {"sample_rate": 0.1},
    r"no 'lr': write sampler=fl.DPSGLD\(step_size=...\)": {"lr": 0.1},
    "no 'round': did you mean 'rounds'": {"round": 3},
    "private chain: rounds is 'x': ": {"rounds": "x"},
    "needs a budget": {"privacy": fl.NoPrivacy(noise_standard_deviation=5)},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_does_not_fit_is_refused_before_a_step(said: str) -> None:
    with pytest.raises(UserError, match=said):
        fl.PrivateChain(
            **{"module": nn.Linear(3, 2), "data": (FEATURES, LABELS), "privacy": PRIVACY}
            | REFUSED[said]
        )
