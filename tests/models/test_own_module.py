"""A module of one's own: exact gradients, its trained part, its start, and refusals."""

import hashlib
import sys
from types import ModuleType

import numpy as np
import pytest
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import nn

from fl_dpbayes.config.site_file import Policy
from fl_dpbayes.config.task import ModuleModel, Task
from fl_dpbayes.models.build import build_model, model_shapes
from fl_dpbayes.models.code_behind import code_behind
from fl_dpbayes.models.module_checks import validate_module
from fl_dpbayes.models.own_module import provided, unbuilt_size
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.posterior.student import logits_at
from fl_dpbayes.samplers.gradients import vmap
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from tests.asking import refused
from tests.samplers.gradients import one_by_one

TASK = Task(input_shape=(2, 4, 4), classes=3)


class Residual(nn.Module):
    def __init__(self, head=None, how=None) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.how = how or (lambda features: 0)
        self.branch = nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.norm = nn.LayerNorm(4)
        self.head = head or nn.Linear(4, 3)

    def forward(self, features):
        hidden = self.first(features)
        return self.head(self.norm((hidden + self.branch(hidden)).mean(dim=(2, 3)))) + self.how(
            features
        )


class ActNorm(nn.Linear):
    """Takes its shift from the first batch that it sees."""

    shift = None

    def forward(self, features):
        self.shift = features.mean(0).detach() if self.shift is None else self.shift
        return super().forward(features - self.shift)


class Level(nn.Embedding):
    def forward(self, features):
        return super().forward(features[:, 0, 0, 0].long().clamp(min=0, max=self.most))

    most = None


class Complex(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3, dtype=torch.complex64)


def drawn_by_numpy(make=torch.tensor):
    module = Residual()
    module.register_buffer("waves", make(np.random.default_rng().normal(size=3)))
    return module


def kept_by_numpy():
    return drawn_by_numpy(torch.from_numpy)


def read_at_once():
    return Residual(nn.Linear(4, int(torch.tensor(3.0).item())))


def own(factory: str = "Residual", **keys: object) -> ModuleModel:
    return ModuleModel(factory=f"tests.models.test_own_module:{factory}", **keys)


@pytest.mark.parametrize(
    ("trainable", "engine"),
    [
        ((), "book_keeping"),
        (("norm.*",), "book_keeping"),
        (("head.*", "branch.2.*"), "book_keeping"),
        (("head.weight",), "vmap"),
    ],
)
def test_gradients_of_records_are_exact_and_clipped_whatever_part_is_trained(trainable, engine):
    model = own(trainable=trainable)
    whole = dict(Residual().named_parameters())
    module = build_model(model, TASK, seed=3)
    assert (model_shapes(model, TASK).keys() < whole.keys()) == bool(trainable)
    # Where it is not trained, a value is the same for every start.
    assert torch.equal(module.first.weight, build_model(model, TASK, seed=7).first.weight) == bool(
        trainable
    )
    features = torch.randn(6, *TASK.input_shape)
    labels = torch.arange(6) % 3
    chosen = gradient_engine(one_by_one.randomise(module), TASK.input_shape)
    assert chosen.name == engine
    for way in (chosen, vmap):
        one_by_one.check(way, module, features, labels, 0.3)


def test_start_is_the_factory_s_own_at_the_seed_and_moves_no_generator():
    state = torch.random.get_rng_state()
    first, other = (to_vector(build_model(own(), TASK, seed)) for seed in (3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(3)
    assert torch.equal(first, to_vector(Residual()))
    assert not torch.equal(first, other)


def test_weights_by_digest_hold_all_or_some_and_nothing_else(tmp_path):
    def weighing(state):
        path = tmp_path / "w.safetensors"
        safetensors.torch.save_file(state, path)
        return own(weights=hashlib.sha256(path.read_bytes()).hexdigest(), trainable=("head.*",))

    module = build_model(
        weighing({"first.bias": torch.ones(4), "head.bias": torch.ones(3)}), TASK, 5, tmp_path
    )
    assert module.first.bias.tolist() + module.head.bias.tolist() == [1.0] * 7
    for state, said in (
        ({"x": torch.ones(1)}, "'x'"),
        ({"head.bias": torch.ones(4)}, r"has \(3,\)"),
    ):
        refused(said, build_model, weighing(state), TASK, 5, tmp_path)


MIXED = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Residual(MIXED), r"'head\.1'.*GroupNorm"),
        (
            Residual(MIXED[::2]),
            r"^the module .*again: layer 'head\.2' \(Dropout\) draws.* p = 0, .*dp-mc-dropout",
        ),
        (nn.Linear(2, 3), r"fails on records.*\(N, classes\)"),
        (Residual(nn.Linear(4, 5)), r"shape \[13, 5\].*\[13, 3\]"),
        (Residual(how=lambda features: features.mean()), "beside it"),
        (Residual(how=lambda features: torch.rand(3)), "called again"),
        (Residual(how=lambda features: features.mean() * (len(features) > 60)), "beside it"),
        (Residual(how=lambda features: 0 if features.max() < 1e9 else 1), "use torch.where"),
        (Residual(ActNorm(4, 3)), "keeps something of the records"),
        (Level(5, 3), "clamp an index at both ends"),
        (Residual(Complex()), "floating-point"),
        (Residual(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))), r"shape \[13, 5\]"),
    ],
)
def test_module_that_does_not_fit_is_refused_with_the_remedy(module, said):
    with provided(Residual()) as name:
        assert model_shapes(ModuleModel(factory=name), TASK)
    # Some have the name of the one that was good.
    with provided(module) as name:
        refused(said, model_shapes, ModuleModel(factory=name), TASK)


def first_plane(features: torch.Tensor) -> torch.Tensor:
    return features[:, 0, 0, :3]


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_code_is_refused():
    compiled = torch.jit.script(first_plane)
    with provided(Residual(how=lambda features: compiled(features))) as name:
        refused("torch.jit compiled", model_shapes, ModuleModel(factory=name), TASK)
    refused("torch.jit compiled", validate_module, torch.jit.script(nn.Linear(4, 3)))


def test_fixed_part_that_differs_each_time_is_refused():
    refused("another 'waves' each time", model_shapes, own("drawn_by_numpy"), TASK)


@pytest.mark.parametrize("factory", ["kept_by_numpy", "read_at_once"])
def test_module_whose_numbers_cannot_be_counted_first_is_not_built(factory):
    assert unbuilt_size(own(factory)) > Policy(max_run_epsilon=1.0).max_parameters
    refused(r"on torch's device 'meta'.*torch\.tensor", model_shapes, own(factory), TASK)


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, features):
        return self.layer(input=features)


def test_engines_refuse_a_module_that_keeps_records_and_take_keyword_calls():
    refused("keeps something", gradient_engine, nn.Sequential(ActNorm(4, 3)), (4,))
    assert gradient_engine(ByKeyword(), (4,)).name == "vmap"


def frozen():
    return nn.Sequential(
        Residual(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))),
        nn.Linear(3, 3),
    )


def test_part_that_is_not_trained_is_in_evaluation_mode():
    assert list(model_shapes(own("frozen", trainable=("1.*",)), TASK)) == ["1.weight", "1.bias"]


def test_object_is_known_while_it_is_provided_and_to_this_process_only():
    given = Residual()
    given.first.requires_grad_(False)
    with provided(given) as name:
        model = ModuleModel(factory=name)
        refused(
            "requires_grad_", build_model, ModuleModel(factory=name, trainable=("head.*",)), TASK, 0
        )
        module = build_model(model, TASK, 0)
        assert torch.equal(module.first.weight, given.first.weight)
        zeros = {
            key: np.zeros(shape, np.float32) for key, shape in model_shapes(model, TASK).items()
        }
        assert not logits_at(module, np.zeros((2, *TASK.input_shape), np.float32))(zeros)[0].any()
    refused("name a factory", build_model, model, TASK, 0)


@pytest.mark.parametrize(
    "factory",
    [
        "os:system",
        "antigravity:fly",
        "torch.hub:load",
        "pip._internal:main",
        "fl_dpbayes.cli:main",
        "tests.models.test_own_module:torch.os.system",
        "tests.models.test_own_module:safetensors.torch.save_file",
    ],
)
def test_factory_is_a_class_of_modules_or_a_function_of_its_own_package(factory, tmp_path):
    model = ModuleModel(factory=factory, settings={"command": f"touch {tmp_path / 'called'}"})
    refused("is refused", build_model, model, TASK, 0)
    assert not (tmp_path / "called").exists()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("value", [[[[[[1]]]]], [0] * 300, "x" * 1001, None, float("nan")])
def test_settings_are_bounded(value):
    with pytest.raises(ValidationError, match=r"give|flatten"):
        own(settings={"a": value})


def test_modules_that_name_each_other_are_looked_at_once():
    first = ModuleType("first")
    second = ModuleType("second")
    for module, other in ((first, second), (second, first)):
        module.__file__ = "their/own.py"
        setattr(module, other.__name__, other)
    exec("def called(features): return second.first.called(features)", vars(first))
    layer = nn.Linear(2, 2)
    layer.how = first.called
    assert first.called.__code__ in code_behind(layer)
