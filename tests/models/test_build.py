import pytest
import torch

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model, model_shapes
from fl_dpbayes.models.parameters import parameter_shapes, to_vector

MODELS = [LogisticModel(), MLPModel(hidden=(7, 5)), CNNModel(channels=(3, 4), hidden=6)]
IMAGES = [Task(input_shape=(channels, side, side), classes=3) for channels in (1, 3) for side in (8, 28)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
@pytest.mark.parametrize("task", IMAGES, ids=lambda task: str(task.input_shape))
def test_logits_have_one_column_per_class(model, task):
    module = build_model(model, task, seed=1)
    assert module(torch.rand(5, *task.input_shape)).shape == (5, 3)
    assert module(torch.rand(0, *task.input_shape)).shape == (0, 3)


@pytest.mark.parametrize("model", MODELS[:2], ids=lambda model: model.kind)
def test_dense_models_take_tables(model):
    assert build_model(model, Task(input_shape=(10,), classes=2), seed=1)(torch.rand(4, 10)).shape == (4, 2)


@pytest.mark.parametrize("shape", [(64,), (8, 8)])
def test_cnn_refuses_records_that_are_no_images(shape):
    with pytest.raises(UserError, match="choose model kind 'mlp'"):
        build_model(CNNModel(), Task(input_shape=shape, classes=2), seed=0)


def test_cnn_refuses_more_blocks_than_the_image_can_be_halved():
    with pytest.raises(UserError, match="at least 16 x 16, not 8 x 8"):
        build_model(CNNModel(channels=(2, 2, 2, 2)), IMAGES[0], seed=0)


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


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_first_prediction_is_uniform(model):
    assert torch.equal(build_model(model, IMAGES[0], seed=3)(torch.rand(2, 1, 8, 8)), torch.zeros(2, 3))


def test_hidden_weights_have_he_variance():
    weight = build_model(MLPModel(hidden=(500,)), Task(input_shape=(200,), classes=2), seed=0)[1].weight
    assert weight.var().item() == pytest.approx(2 / 200, rel=0.02)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_shapes_without_building_are_those_of_the_module(model):
    shapes = model_shapes(model, IMAGES[0])
    assert list(shapes.items()) == list(parameter_shapes(build_model(model, IMAGES[0], seed=0)).items())


def test_shapes_of_a_huge_model_cost_no_memory():
    shapes = model_shapes(MLPModel(hidden=(8192,) * 8), Task(input_shape=(4096, 4096, 4096), classes=1000))
    assert shapes["1.weight"] == (8192, 4096**3)
