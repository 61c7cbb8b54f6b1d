"""Which way of products is taken where rows depend on where they lie; no way changes a sum."""

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fl_dpbayes.models import rows as row_check
from fl_dpbayes.models.feature_map import checked_feature_map
from fl_dpbayes.models.products import ROW_BYTES, computing, linear, product
from fl_dpbayes.models.rows import PassShape, RowsDependError, Trial, checked_shape, noted_shapes
from fl_dpbayes.posterior.predictive import predict

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
BATCHES = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)
WIDTHS = (5, 9, 13, 14, 25, 30, 50, 126)


def starts_apart(matrix: torch.Tensor) -> bool:
    """Whether a matrix, or its transpose, has a row that does not start at a cache line."""
    stride = matrix.stride(-2) if matrix.stride(-1) == 1 else matrix.stride(-1)
    return bool(matrix.data_ptr() % ROW_BYTES or stride * matrix.element_size() % ROW_BYTES)


class Planted(TorchDispatchMode):
    """Kernels in which rows depend on their start, on their number, on batches, or on calls."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self._calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if func not in PRODUCTS + BATCHES:
            return result
        left, right = args[-2:]
        self._calls += 1
        moved = torch.arange(result.shape[-2])[:, None] % 2 == 1
        if self._kind == "batches" and result.dim() == 3:
            moved = torch.arange(len(result))[:, None, None] % 2 == 1
        depends = {
            "start": starts_apart(left) or starts_apart(right),
            "number": func in PRODUCTS,
            "batches": True,
            "call": True,
        }
        if self._kind == "call":
            moved = torch.full_like(moved, self._calls % 2 == 1)
        changed = torch.where(moved, result * (1 + 2**-20), result)
        return changed if depends[self._kind] else result


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_check, "_known", {})


def linear_trials(shape: PassShape) -> Iterator[Trial]:
    layer = nn.Linear(13, 3)

    def results(features: torch.Tensor, _: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad(), computing(shape.products):
            return [layer(features)]

    yield Trial(results, torch.randn(shape.rows, 13), torch.zeros(shape.rows))


@pytest.mark.parametrize(
    ("kind", "rows", "products"),
    [("start", 64, "aligned"), ("number", 64, "separate"), ("batches", 1, "plain")],
)
def test_the_first_way_in_which_rows_stand_alone_is_taken(kind, rows, products, caplog) -> None:
    wanted = PassShape("predictions", wanted=64, rows=64)
    with Planted(kind), caplog.at_level(logging.WARNING, logger="fl_dpbayes.site"):
        chosen = checked_shape(kind, wanted, linear_trials)
        assert checked_shape(kind, wanted, lambda _: pytest.fail("looked for again")) is chosen
    assert (chosen.rows, chosen.products) == (rows, products)
    assert chosen.one_by_one == (rows == 1)
    assert chosen.slower >= 1
    assert ("one by one" in caplog.text) == chosen.one_by_one


def test_more_rows_are_tried_in_each_way_before_fewer(monkeypatch) -> None:
    tried = []
    monkeypatch.setattr(row_check, "_seconds_of_row", lambda *_: 1.0)
    monkeypatch.setattr(
        row_check, "_stands_alone", lambda shape, _: tried.append((shape.rows, shape.products))
    )
    with pytest.raises(RowsDependError, match="another device"):
        checked_shape("none", PassShape("gradients", wanted=64, rows=64), linear_trials)
    each = [(rows, products) for rows in (64, 128, 256) for products in ("plain", "aligned")]
    assert tried == [*each, (64, "separate"), (1, "plain")]
    tried.clear()
    with pytest.raises(RowsDependError, match="another device"):
        checked_shape("one", PassShape("gradients", wanted=1, rows=1), linear_trials)
    assert tried == [(1, "plain")]


def test_a_row_that_differs_from_itself_is_refused() -> None:
    with Planted("call"), pytest.raises(RowsDependError, match="another device"):
        checked_shape("call", PassShape("features", wanted=64, rows=64), linear_trials)


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, 10), nn.Tanh(), nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 3)
    )


def backwards(width: int) -> torch.Tensor:
    features = torch.randn(16, width, requires_grad=True)
    return torch.autograd.grad(network(width)(features).square().sum(), features)[0]


def by_record(width: int) -> torch.Tensor:
    module = network(width)
    values = {name: value.detach() for name, value in module.named_parameters()}

    def loss(values: dict[str, torch.Tensor], record: torch.Tensor) -> torch.Tensor:
        return functional_call(module, values, (record[None],)).square().sum()

    return vmap(grad(loss), in_dims=(None, 0))(values, torch.randn(16, width))["0.weight"]


def by_sample(width: int) -> torch.Tensor:
    weights = torch.randn(5, 3, width)
    features = torch.randn(16, width)
    return vmap(lambda weight: nn.functional.linear(features.clone(), weight))(weights)


def of_vector(width: int) -> torch.Tensor:
    return torch.randn(16, width) @ torch.randn(width)


def in_double(width: int) -> torch.Tensor:
    return torch.randn(16, width).double() @ torch.randn(width, 3).double()


def gram(width: int) -> torch.Tensor:
    features = torch.randn(16, 9, width).double()
    return features @ features.mT


def attention(width: int) -> torch.Tensor:
    query, key, value = torch.randn(3, 16, 2, 9, width)
    return nn.functional.scaled_dot_product_attention(query, key, value)


def summed(width: int) -> torch.Tensor:
    return torch.einsum("nlk,ko->nlo", torch.randn(16, 9, width), torch.randn(width, 7))


def scaled(width: int) -> torch.Tensor:
    return torch.addmm(
        torch.randn(3), torch.randn(16, width), torch.randn(width, 3), beta=0.5, alpha=2.0
    )


COMPUTED = (backwards, by_record, by_sample, of_vector, in_double, gram, attention, summed, scaled)


class Starts(TorchDispatchMode):
    """Counts products, and those with a row that does not start at a cache line."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.apart = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if func in PRODUCTS + BATCHES:
            self.products += 1
            self.apart += any(map(starts_apart, (*args[-2:], result)))
        return result


@pytest.mark.parametrize("computed", COMPUTED, ids=lambda each: each.__name__)
@pytest.mark.parametrize("width", [5, 13, 16, 126])
def test_all_rows_of_all_products_start_at_a_cache_line_and_no_sum_changes(computed, width) -> None:
    torch.manual_seed(1)
    expected = computed(width)
    tolerance = 1e-12 if expected.dtype == torch.float64 else 2e-5
    for products in ("aligned", "separate"):
        torch.manual_seed(1)
        with Starts() as seen, computing(products):
            found = computed(width)
        assert seen.products > 0
        assert seen.apart == 0
        assert found.is_contiguous() == expected.is_contiguous()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.manual_seed(1)
    with Starts() as plain, computing("plain"):
        computed(width)
    # By itself torch leaves rows where they are: the test above can fail.
    assert plain.apart > 0 or width == 16 or computed is attention or computed is of_vector


@pytest.mark.parametrize("products", ["plain", "aligned", "separate"])
def test_products_that_are_named_are_those_of_the_block(products) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(13, 3)
    features = torch.randn(64, 13)
    right = torch.randn(13, 5)
    with torch.no_grad(), computing(products):
        inside = layer(features), nn.functional.linear(features, layer.weight), features @ right
    with torch.no_grad():
        named = (
            linear(features, layer.weight, layer.bias, products),
            linear(features, layer.weight, None, products),
        )
        assert all(map(torch.equal, inside, (*named, product(features, right, products))))


@pytest.mark.parametrize("products", ["aligned", "separate"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_row_that_is_not_finite_stays_alone(products, value) -> None:
    layer = nn.Linear(13, 3)
    features = torch.randn(16, 13)
    with torch.no_grad(), computing(products):
        expected = layer(features)
        features[4] = value
        found = layer(features)
    kept = torch.arange(16) != 4
    assert torch.equal(found[kept], expected[kept])
    # Zeros behind the row do not make it finite.
    assert value == 1e30 or not found[4].isfinite().any()


def test_predictions_and_features_are_computed_in_the_way_that_was_found() -> None:
    features = np.random.default_rng(0).standard_normal((70, 13), np.float32)
    samples = {"weight": np.ones((3, 2, 13), np.float32), "bias": np.zeros((3, 2), np.float32)}
    matrix = torch.randn(13, 4)

    def mapped() -> np.ndarray:
        return checked_feature_map(
            "map", (13,), (4,), lambda rows: rows @ matrix, 64, torch.device("cpu")
        )(features)

    # Under some settings of MKL aligned products depend on each other by themselves.
    for kind, products in (("start", {"aligned", "separate"}), ("number", {"separate"})):
        row_check._known.clear()
        with noted_shapes() as noted, Planted(kind) as planted:
            alone = predict(nn.Linear(13, 2), samples, np.ones(3), features[7:8]).probabilities
            beside = predict(nn.Linear(13, 2), samples, np.ones(3), features).probabilities
            assert np.array_equal(alone, beside[7:8])
            assert mapped().shape == (70, 4)
        assert planted._calls
        assert {shape.computation: shape.rows for shape in noted} == {
            "predictions": 256,
            "features": 64,
        }
        assert {shape.products for shape in noted} <= products
