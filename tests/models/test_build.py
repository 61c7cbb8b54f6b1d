from itertools import product

import pytest
import torch

from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, StridedCNNModel, Task
from fl_dpbayes.models.build import build_model, model_shapes
from fl_dpbayes.models.parameters import parameter_shapes, to_vector
from tests.asking import refused

MODELS = [LogisticModel(), MLPModel(hidden=(7, 5)), CNNModel(channels=(3, 4), hidden=6)]
ROWS = [Task(input_shape=(10,), classes=3)]
IMAGES = [
    Task(input_shape=(channels, side, side), classes=3) for channels in (1, 3) for side in (8, 28)
]


@pytest.mark.parametrize(
    ("shape", "channels", "said"),
    [
        ((64,), (8, 16), "choose model kind 'mlp'"),
        ((8, 8), (8, 16), "choose model kind 'mlp'"),
        ((1, 8, 8), (2, 2, 2, 2), "at least 16 x 16, not 8 x 8"),
    ],
)
def test_cnn_refuses_records_that_are_no_images_or_too_small_for_its_blocks(shape, channels, said):
    refused(
        said, build_model, CNNModel(channels=channels), Task(input_shape=shape, classes=2), seed=0
    )


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_strided_cnn_is_the_one_of_the_literature(activation):
    model = StridedCNNModel(activation=activation)
    module = build_model(model, Task(input_shape=(1, 28, 28), classes=10), seed=0)
    # 1,040 + 8,224 + 16,416 + 330, as the examples of TensorFlow Privacy and Opacus have.
    assert sum(parameter.numel() for parameter in module.parameters()) == 26_010
    layer = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[activation]
    assert sum(isinstance(part, layer) for part in module) == 3
    # Uniform on [-b, b], b = 1 / sqrt(fan_in), as torch draws by default.
    largest = module[3].weight.abs().max().item() * 256**0.5
    assert 0.99 < largest <= 1
    for shape, said in (((28, 28), "choose model kind 'mlp'"), ((1, 15, 28), "at least 16 x 16")):
        refused(said, build_model, model, Task(input_shape=shape, classes=10), seed=0)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_seed_decides_and_global_generator_stays(model):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = to_vector(build_model(model, IMAGES[0], seed=3))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert torch.equal(first, to_vector(build_model(model, IMAGES[0], seed=3)))
    if model.kind != "logistic":
        assert not torch.equal(first, to_vector(build_model(model, IMAGES[0], seed=4)))


def test_hidden_weights_have_he_variance():
    weight = build_model(MLPModel(hidden=(500,)), Task(input_shape=(200,), classes=2), seed=0)[
        1
    ].weight
    assert weight.var().item() == pytest.approx(2 / 200, rel=0.02)


@pytest.mark.parametrize(
    ("model", "task"), [*product(MODELS, IMAGES), *product(MODELS[:2], ROWS)], ids=str
)
def test_first_prediction_is_uniform_and_shapes_are_known_without_building(model, task):
    module = build_model(model, task, seed=3)
    for count in (2, 0):
        assert torch.equal(module(torch.rand(count, *task.input_shape)), torch.zeros(count, 3))
    assert list(model_shapes(model, task).items()) == list(parameter_shapes(module).items())


def test_shapes_of_a_huge_model_cost_no_memory():
    shapes = model_shapes(
        MLPModel(hidden=(8192,) * 8), Task(input_shape=(4096, 4096, 4096), classes=1000)
    )
    assert shapes["1.weight"] == (8192, 4096**3)
