import itertools
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.task import CNNModel, Task
from fl_dpbayes.models import rows as row_check
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.feature_map import checked_feature_map
from fl_dpbayes.models.module_checks import validate_module
from fl_dpbayes.models.rows import drawn_modules, rows_stand_alone, structure
from tests.asking import refused


class Of(nn.Module):
    """Computes a function of the rows."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, features):
        return self.function(features)


class RowCount(nn.Module):
    """Right at one row count, wrong where rows look at their neighbours."""

    def __init__(self, good):
        super().__init__()
        self.good = good

    def forward(self, features):
        return features if len(features) == self.good else features + features.roll(1, dims=0)


def one_bit(features):
    """Rows beside a row of zeros are one bit larger."""
    beside = (features == 0).all(dim=1).roll(1)[:, None]
    return torch.where(beside, torch.nextafter(features, features + 1), features)


CALLS = itertools.count()
UNREPEATABLE = Of(lambda features: features + next(CALLS))
PLANTED = {
    "row number": Of(lambda features: features + 1e-6 * torch.arange(len(features))[:, None]),
    "leaky NaN": Of(lambda features: features + 0 * features.sum()),
    "one bit": Of(one_bit),
    "calls": UNREPEATABLE,
}


def stands_alone(module, rows, shape=(5,), dtype=torch.float32):
    features = torch.randn((rows, *shape), generator=torch.Generator().manual_seed(rows)).to(dtype)
    with torch.no_grad():
        results = [
            lambda part, _, drawn=drawn: [drawn(part)] for drawn in drawn_modules(module.to(dtype))
        ]
        given = features, torch.zeros(rows)
        return all(rows_stand_alone(result, *given, np.random.default_rng(0)) for result in results)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_dependence_is_found(name) -> None:
    assert not stands_alone(PLANTED[name], 64)


def found_by_force(module, rows, width, dtype):
    """Say whether any of 300 permutations and replacements changes a bit."""
    module = next(iter(drawn_modules(module.to(dtype))))
    generator = np.random.default_rng(1)
    features = torch.randn((rows, width), generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        expected = module(features)
        for _ in range(300):
            order = torch.from_numpy(generator.permutation(rows))
            moved = features[order].clone()
            kept = torch.from_numpy(generator.random(rows) < 0.5)
            moved[~kept] = float(generator.choice(row_check.NEIGHBOURS))
            if not torch.equal(module(moved)[kept], expected[order][kept]):
                return True
    return False


PLAIN = {
    "linear": nn.Linear(5, 3),
    "one unit": nn.Linear(5, 1),
    "vector tails": nn.Sequential(nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, 1), nn.Softplus()),
    "normalised": nn.Sequential(
        nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), nn.Softmax(dim=1)
    ),
    "13 columns": nn.Linear(13, 10),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("wanted", [1, 64, 256])
def test_no_force_moves_a_bit_of_a_row_in_the_passes_that_were_chosen(name, wanted) -> None:
    module = next(iter(drawn_modules(PLAIN[name]))).requires_grad_(False)
    width = 13 if "13" in name else 5
    outputs = module(torch.zeros(1, width)).shape[-1]
    mapped = checked_feature_map(
        (name, wanted), (width,), (outputs,), module, wanted, torch.device("cpu")
    )
    rows = mapped.records_per_pass
    # Which of them it is, is the processor's business.
    assert rows in {wanted, 2 * wanted, 4 * wanted, 1}
    generator = np.random.default_rng(1)
    features = generator.standard_normal((rows, width), np.float32)
    expected = mapped(features)
    for _ in range(100):
        order = generator.permutation(rows)
        moved = features[order]
        kept = generator.random(rows) < 0.5
        moved[~kept] = generator.choice(row_check.NEIGHBOURS)
        found = mapped(moved[: generator.integers(1, rows + 1)])
        kept = kept[: len(found)]
        np.testing.assert_array_equal(found[kept], expected[order][: len(found)][kept])


@pytest.mark.parametrize(
    ("module", "rows", "width", "dtype"),
    [
        (nn.Sigmoid(), 20, 3, torch.float32),
        (nn.Sequential(nn.Linear(784, 1), nn.ReLU(), nn.Linear(1, 2)), 17, 784, torch.float32),
        (nn.Linear(784, 10), 64, 784, torch.bfloat16),
    ],
    ids=["sigmoid of 20 rows", "one unit of 17 rows", "bfloat16"],
)
def test_what_this_processor_mixes_is_found(module, rows, width, dtype) -> None:
    # Which of them depend is the processor's business: what brute force finds, the check must find.
    if not found_by_force(module, rows, width, dtype):
        pytest.skip("rows do not depend on each other here")
    assert not stands_alone(module, rows, (width,), dtype)


def test_an_operation_that_torch_cannot_repeat_on_a_device_is_named() -> None:
    def results(features, targets):
        said = "pool_backward_cuda does not have a deterministic implementation, but you set"
        raise RuntimeError(f"{said} 'torch.use_deterministic_algorithms(True)'")

    trial = row_check.Trial(results, torch.zeros(1, 2), torch.zeros(1))
    wanted = row_check.PassShape("gradients", wanted=1, rows=1)
    refused(
        "pool_backward_cuda .*: use another device",
        row_check.checked_shape,
        "not repeated",
        wanted,
        lambda shape: [trial],
    )


def test_structure_tells_architectures_apart_and_not_values() -> None:
    assert structure(nn.Linear(5, 3)) == structure(nn.Linear(5, 3))
    others = [
        nn.Linear(5, 4),
        nn.Linear(5, 3, bias=False),
        nn.Linear(5, 3).bfloat16(),
        nn.Conv2d(5, 3, 1),
    ]
    assert len({structure(module) for module in [nn.Linear(5, 3), *others]}) == 5
    assert structure(RowCount(1)) != structure(RowCount(2))
    assert (
        structure(RowCount({"good": 1}))
        == structure(RowCount({"good": 1}))
        != structure(RowCount({"good": 2}))
    )
    assert structure(of := Of(lambda rows: rows)) != structure(of)
    assert structure(nn.Sequential(layer := nn.Linear(4, 4))) != structure(
        nn.Sequential(layer, layer)
    )


def with_batch_norm(**options):
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, **options), nn.Linear(4, 2))


def frozen_batch_norm(**options):
    module = with_batch_norm(**options)
    module[1].requires_grad_(False)
    return module


def test_shipped_model_and_group_norm_pass():
    validate_module(build_model(CNNModel(), Task(input_shape=(1, 8, 8), classes=2), seed=0))
    validate_module(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 2))
    )


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (with_batch_norm(), r"layer '1' \(BatchNorm1d\).*GroupNorm"),
        (with_batch_norm(affine=False), r"layer '1' \(BatchNorm1d\).*GroupNorm"),
        (
            with_batch_norm(affine=False, track_running_stats=False),
            r"layer '1' \(BatchNorm1d\).*GroupNorm",
        ),
        (frozen_batch_norm(track_running_stats=False).eval(), "stored statistics"),
        (nn.BatchNorm1d(3), "layer 'BatchNorm1d'"),
        (nn.Sequential(nn.LSTM(3, 3)), r"layer '0' .*LSTM"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)),
            "InstanceNorm2d",
        ),
    ],
)
def test_layers_that_mix_records_are_refused_by_name(module, said):
    refused(said, validate_module, module)


def test_frozen_batch_norm_passes_only_in_eval_mode_and_keeps_its_statistics():
    module = frozen_batch_norm()
    refused("call eval", validate_module, module)
    module[1].eval()
    validate_module(module)
    before = module[1].running_mean.clone()
    module(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(before, module[1].running_mean)


_FAULTS = """
import resource, torch
from fl_dpbayes.models.rows import keep_freed_memory
{call}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(2**20) for _ in range(16)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print({pick}([faults() for _ in range(6)][1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="another allocator")
def test_memory_that_a_step_freed_is_not_asked_for_again() -> None:
    def faults(call: str, pick: str) -> int:
        code = _FAULTS.format(call=call, pick=pick)
        return int(
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        )

    # 64 MiB are 16,384 pages. What lies above them in the heap may keep them now and then, whoever
    # asked for it.
    assert faults("keep_freed_memory()", "min") < 8000 < faults("", "max")
