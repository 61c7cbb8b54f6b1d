"""The last layer on a frozen body is that of the whole network: values, gradients, sensitivity."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

from fl_dpbayes.config.task import (
    CNNModel,
    FrozenBody,
    LogisticModel,
    MLPModel,
    ScatteringFeatures,
    Task,
)
from fl_dpbayes.models.build import build_model, model_input_shape, model_shapes
from fl_dpbayes.models.frozen_body import body_size, frozen_body, records_per_pass
from fl_dpbayes.models.parameters import parameter_shapes, to_vector, vector_to_arrays
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.store import save_posterior
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from tests.asking import refused
from tests.samplers.gradients import one_by_one

TASK = Task(input_shape=(1, 8, 8), classes=3)
BODY = FrozenBody(seed=4)
MODELS = [
    MLPModel(hidden=(7, 5), frozen_body=BODY),
    MLPModel(hidden=(5,), features=ScatteringFeatures(), frozen_body=BODY),
    CNNModel(channels=(3,), hidden=6, frozen_body=BODY),
]
NAMES = ["mlp", "mlp on features", "cnn"]
CLIP_NORM = 0.4


def records_of(model, count=9):
    shape = (324,) if model.features else TASK.input_shape
    return np.random.default_rng(0).random((count, *shape), dtype=np.float32)


def whole_network(model, seed=4):
    whole = build_model(model.model_copy(update={"frozen_body": None}), TASK, seed)
    generator = torch.Generator().manual_seed(1)
    for value in whole[-1].parameters():
        value.data = torch.randn(value.shape, generator=generator)
    return whole


def take_last_layer(head, whole):
    head.load_state_dict(
        {name: value for name, value in whole.state_dict().items() if name in head.state_dict()}
    )


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_last_layer_on_the_body_is_the_whole_network(model):
    records = records_of(model)
    whole = whole_network(model)
    mapped = frozen_body(model, BODY, records.shape[1:])
    head = build_model(model, TASK, seed=9)
    assert not any(value.requires_grad for value in mapped.transform.__self__.module.parameters())
    assert mapped.output_shape == model_input_shape(model, TASK)
    assert list(parameter_shapes(head)) == list(parameter_shapes(whole))[-2:]
    assert model_shapes(model, TASK) == parameter_shapes(head)
    assert torch.equal(to_vector(head), torch.zeros_like(to_vector(head)))
    take_last_layer(head, whole)
    with torch.no_grad():
        torch.testing.assert_close(
            head(torch.tensor(mapped(records))), whole(torch.tensor(records))
        )
    np.testing.assert_array_equal(mapped(records[[2, 1]]), mapped(records)[[2, 1]])
    assert mapped(records[:0]).shape == (0, *mapped.output_shape)
    assert body_size(model, records.shape[1:]) == to_vector(whole).numel() - to_vector(head).numel()


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_clipped_sum_is_that_of_the_last_layer_in_a_loop_over_records(model):
    records = records_of(model)
    whole = whole_network(model)
    targets = torch.arange(len(records)) % TASK.outcome.classes
    whole[:-1].requires_grad_(False)
    expected = one_by_one.clipped_sum(whole, torch.tensor(records), targets, CLIP_NORM)
    assert expected.norm() < one_by_one.gradient_of(whole, torch.tensor(records), targets).norm()
    head = build_model(model, TASK, seed=0)
    take_last_layer(head, whole)
    inputs = torch.tensor(frozen_body(model, BODY, records.shape[1:])(records))
    engine = gradient_engine(head, inputs.shape[1:])
    assert engine.name == "book_keeping"
    found = engine.clipped_sum(head, inputs, targets, clip_norm=CLIP_NORM).total
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for left_out in range(len(records)):
        others = torch.arange(len(records)) != left_out
        fewer = engine.clipped_sum(head, inputs[others], targets[others], clip_norm=CLIP_NORM).total
        assert (found - fewer).norm() <= CLIP_NORM * (1 + 1e-5)


def stored(folder, state, name="body.safetensors"):
    path = folder / name
    if path.suffix == ".safetensors":
        safetensors.torch.save_file({key: value.contiguous() for key, value in state.items()}, path)
    else:
        torch.save(state, path)
    return FrozenBody(weights=hashlib.sha256(path.read_bytes()).hexdigest())


def assert_body_of(whole, model, body, folder):
    records = records_of(model)
    mapped = frozen_body(model, body, records.shape[1:], weights_folder=folder)
    # In the same passes: a network gives other last bits at other numbers of rows.
    expected = replace(mapped, transform=whole[:-1].requires_grad_(False))
    np.testing.assert_array_equal(mapped(records), expected(records))


@pytest.mark.parametrize("name", ["any name.safetensors", "body.pth"])
@pytest.mark.parametrize("end", [None, -1], ids=["whole network", "body alone"])
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_weights_of_a_file_are_the_body(model, name, end, tmp_path):
    whole = whole_network(model, seed=8)
    body = stored(tmp_path, whole[:end].state_dict(), name)
    assert_body_of(whole, model, body, tmp_path)


def posterior_file(folder, model, count):
    whole = whole_network(model, seed=8)
    arrays = vector_to_arrays(to_vector(whole).expand(count, -1), whole)
    path = folder / "posterior.safetensors"
    plain = model.model_copy(update={"frozen_body": None})
    save_posterior(path, PosteriorSamples(arrays, np.ones(count), np.zeros(count)), plain, TASK, "")
    return whole, FrozenBody(weights=hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_posterior_is_a_body_if_it_holds_one_network(tmp_path):
    whole, body = posterior_file(tmp_path, MODELS[0], count=1)
    assert_body_of(whole, MODELS[0], body, tmp_path)
    _, body = posterior_file(tmp_path, MODELS[0], count=2)
    refused(
        r"several samples.*'fedavg'",
        frozen_body,
        MODELS[0],
        body,
        TASK.input_shape,
        weights_folder=tmp_path,
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda state: {name: value for name, value in state.items() if name != "1.bias"},
            "1.bias",
        ),
        (lambda state: state | {"1.bias": torch.zeros(6)}, "size mismatch"),
        (lambda state: state | {"9.weight": torch.zeros(2, 2)}, "9.weight"),
        (lambda state: state | {"1.bias": torch.full((7,), torch.nan)}, "not a finite number"),
        (lambda state: {"samples/1.bias": torch.tensor(1.0)}, "several samples"),
    ],
)
def test_another_file_and_a_missing_one_are_refused(spoil, said, tmp_path):
    body = stored(tmp_path, spoil(whole_network(MODELS[0]).state_dict()))
    for wanted, message in ((body, said), (FrozenBody(weights="0" * 64), r"0{64}")):
        refused(message, frozen_body, MODELS[0], wanted, TASK.input_shape, weights_folder=tmp_path)


def test_values_have_one_origin_and_a_logistic_model_has_no_body():
    with pytest.raises(ValueError, match="give one of them"):
        FrozenBody(seed=1, weights="0" * 64)
    with pytest.raises(ValueError, match="frozen_body"):
        LogisticModel.model_validate({"frozen_body": {"seed": 1}})


def test_a_pass_takes_bounded_memory_and_a_huge_body_is_counted_without() -> None:
    assert body_size(MLPModel(hidden=(8192,) * 8), (100_000,)) > 10**9
    assert records_per_pass(CNNModel(channels=(8, 16)), (1, 28, 28)) == 64
    assert 0 < records_per_pass(CNNModel(channels=(512, 8)), (3, 224, 224)) < 64
    assert records_per_pass(CNNModel(channels=(2048, 8)), (3, 224, 224)) == 0
    refused(
        "choose fewer channels",
        frozen_body,
        CNNModel(channels=(2048, 8), frozen_body=BODY),
        BODY,
        (3, 224, 224),
    )
