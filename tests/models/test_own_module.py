"""A module of one's own: exact gradients, its trained part, its start, and what is refused with its remedy."""

import hashlib

import numpy as np
import pytest
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import nn

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.task import ModuleModel, Task
from fl_dpbayes.models.build import build_model, model_shapes
from fl_dpbayes.models.own_module import provided
from fl_dpbayes.models.parameters import logits_at, to_vector
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.samplers.gradients import vmap
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from tests.samplers.gradients import one_by_one

TASK = Task(input_shape=(2, 4, 4), classes=3)


class Residual(nn.Module):
    def __init__(self, width: int = 4, **layers: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, width, 3, padding=1)
        self.branch = nn.Sequential(nn.GroupNorm(2, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, features):
        hidden = self.first(features)
        return self.head(self.norm((hidden + self.branch(hidden)).mean(dim=(2, 3))))


def batch_statistics(features):
    return features.flatten(1)[:, :3] - features.mean()


class Plain(nn.Linear):
    def __init__(self, how) -> None:
        super().__init__(32, 3)
        self.how = how

    def forward(self, features):
        return super().forward(features.flatten(1)) + self.how(features)


class TimeFirst(nn.Linear):
    """Its rows are positions, not records."""

    def forward(self, features):
        return super().forward(features.flatten(1).T[:, :, None].expand(-1, -1, 2)).sum(dim=0)


def own(factory: str = "Residual", **keys: object) -> ModuleModel:
    return ModuleModel(factory=f"tests.models.test_own_module:{factory}", **keys)


@pytest.mark.parametrize(("trainable", "engine"), [
    ((), "vmap"), (("norm.*",), "vmap"), (("head.*", "branch.2.*"), "book_keeping"), (("head.weight",), "vmap"),
])  # fmt: skip
def test_gradients_of_records_are_exact_and_clipped_whatever_part_is_trained(trainable, engine):
    model = own(trainable=trainable)
    module = build_model(model, TASK, seed=3)
    whole = dict(build_model(own(), TASK, seed=3).named_parameters())
    assert all(name in whole for name in model_shapes(model, TASK))
    assert trainable or model_shapes(model, TASK).keys() == whole.keys()
    # Where it is not trained, a value is the same for every start.
    assert torch.equal(module.first.weight, build_model(model, TASK, seed=7).first.weight) == bool(trainable)
    features, labels = torch.randn(6, *TASK.input_shape), torch.arange(6) % 3
    one_by_one.randomise(module)
    chosen = gradient_engine(module, TASK.input_shape)
    assert chosen.name == engine
    for way in (chosen, vmap):
        one_by_one.check(way, module, features, labels, 0.3)


def test_layer_whose_rows_are_no_records_is_left_to_vmap():
    assert gradient_engine(TimeFirst(2, 3), TASK.input_shape).name == "vmap"


def test_start_is_the_factory_s_own_at_the_seed_and_moves_no_generator():
    state = torch.random.get_rng_state()
    first, again, other = (to_vector(build_model(own(), TASK, seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(3)
    assert torch.equal(first, to_vector(Residual()))


def test_weights_by_digest_hold_all_or_some_and_nothing_else(tmp_path):
    def weighing(state):
        path = tmp_path / "w.safetensors"
        safetensors.torch.save_file(state, path)
        return own(weights=hashlib.sha256(path.read_bytes()).hexdigest(), trainable=("head.*",))

    module = build_model(weighing({"first.bias": torch.ones(4), "head.bias": torch.ones(3)}), TASK, 5, tmp_path)
    assert module.first.bias.tolist() == [1.0] * 4
    assert module.head.bias.tolist() == [1.0] * 3
    for state, said in (({"x": torch.ones(1)}, "'x'"), ({"head.bias": torch.ones(4)}, "shape \\[3\\]")):
        with pytest.raises(UserError, match=said):
            build_model(weighing(state), TASK, 5, tmp_path)


REFUSED = {
    "head.1": (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "GroupNorm"),
    "head.0": (nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), "p = 0"),
    "(N, classes)": (nn.Linear(2, 3), "fails on records"),
    "[1, 3]": (nn.Linear(4, 5), "shape [1, 5]"),
}


@pytest.mark.parametrize("where", REFUSED)
def test_layer_that_does_not_fit_is_named_with_the_remedy(where):
    layer, said = REFUSED[where]
    with provided(Residual(head=layer)) as name, pytest.raises(UserError) as caught:
        model_shapes(ModuleModel(factory=name), TASK)
    assert where in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(("how", "said"), [
    (batch_statistics, "beside it"), (lambda features: torch.rand(3), "called again"),
])  # fmt: skip
def test_computation_that_mixes_records_or_draws_is_refused(how, said):
    with provided(Plain(how)) as name, pytest.raises(UserError, match=said):
        model_shapes(ModuleModel(factory=name), TASK)


def test_object_is_known_while_it_is_provided_and_to_this_process_only():
    given = Residual()
    given.first.requires_grad_(False)
    with provided(given) as name:
        model = ModuleModel(factory=name)
        with pytest.raises(UserError, match="requires_grad_"):
            build_model(ModuleModel(factory=name, trainable=("head.*",)), TASK, 0)
        module = build_model(model, TASK, 0)
        assert torch.equal(module.first.weight, given.first.weight)
        arrays = {key: np.zeros((1, *shape), np.float32) for key, shape in model_shapes(model, TASK).items()}
        features = np.zeros((2, *TASK.input_shape), np.float32)
        assert predict(module, arrays, np.ones(1), features).probabilities == pytest.approx(1 / 3)
        assert logits_at(module, features)({k: v[0] for k, v in arrays.items()})[0].shape == (2, 3)
    with pytest.raises(UserError, match="name a factory"):
        build_model(model, TASK, 0)


@pytest.mark.parametrize("settings", [
    {"a": [[[[[[1]]]]]]}, {"a": [0] * 300}, {"a": "x" * 1001}, {"a": None}, {"a": float("nan")},
])  # fmt: skip
def test_settings_are_bounded(settings):
    with pytest.raises(ValidationError, match=r"give|flatten"):
        own(settings=settings)
