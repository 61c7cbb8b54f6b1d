import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from fl_dpbayes.config.recalibration import RecalibrationMap
from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.posterior.sample_file import array_header, seal
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.store import load_posterior, save_posterior
from tests.asking import refused

MODEL = MLPModel(hidden=(3,))
TASK = Task(input_shape=(4,), classes=2)
META = {"format": 2, "model": MODEL.model_dump(), "task": TASK.model_dump(), "scenario_hash": "ab"}

IMAGES = {"input_shape": [3, 64, 64], "classes": 3}


def samples_of(count=5):
    generator = np.random.default_rng(0)
    shapes = model_shapes(MODEL, TASK).items()
    arrays = {
        name: generator.standard_normal((count, *shape)).astype(np.float32)
        for name, shape in shapes
    }
    return PosteriorSamples(arrays, generator.random(count), generator.random(count))


def tensors_of(samples):
    stored = {f"samples/{name}": array for name, array in samples.arrays.items()}
    return stored | {"weights": samples.weights, "temperatures": samples.temperatures}


def save_sealed(tensors, path, metadata=None):
    """Write what a hostile program would, with a checksum that fits."""
    write_arrays(path, tensors, PLACE_OF_SEAL | (metadata or {}))
    seal(path)


PLACE_OF_SEAL = {"sha256": "0" * 64}


def write_arrays(path, tensors, metadata):
    header, _ = array_header({name: (a.dtype, a.shape) for name, a in tensors.items()}, metadata)
    contents = [np.ascontiguousarray(array).tobytes() for array in tensors.values()]
    path.write_bytes(b"".join([header, *contents]))


def test_round_trip_of_samples_that_are_views_in_another_order(tmp_path):
    path = tmp_path / "posterior.safetensors"
    samples = samples_of()
    flipped = {name: array[::-1] for name, array in samples.arrays.items()}
    samples = PosteriorSamples(flipped, samples.weights[::-1], samples.temperatures)
    save_posterior(path, samples, MODEL, TASK, "ab")
    stored = load_posterior(path)
    assert (stored.metadata.model, stored.metadata.task, stored.metadata.scenario_hash) == (
        MODEL,
        TASK,
        "ab",
    )
    assert stored.samples.arrays.keys() == samples.arrays.keys()
    for name, array in samples.arrays.items():
        np.testing.assert_array_equal(stored.samples.arrays[name], array)
    np.testing.assert_array_equal(stored.samples.weights, samples.weights)
    np.testing.assert_array_equal(stored.samples.temperatures, samples.temperatures)
    assert list(tmp_path.iterdir()) == [path]


def test_recalibration_map_is_kept_and_must_fit_the_classes(tmp_path):
    path = tmp_path / "posterior.safetensors"
    mapping = RecalibrationMap(method="vector", parameters=(0.5, 0.1, -0.2, 0))
    save_posterior(path, samples_of(), MODEL, TASK, "ab", mapping)
    assert load_posterior(path).metadata.recalibration == mapping
    wrong = META | {"recalibration": {"method": "vector", "parameters": [0.0, 0.0]}}
    save_sealed(tensors_of(samples_of()), path, metadata={"fl_dpbayes": json.dumps(wrong)})
    refused("another number of classes", load_posterior, path)


def hostile_tensors():
    good = tensors_of(samples_of())
    yield "nan", good | {"samples/1.bias": np.full((5, 3), np.nan, np.float32)}, "not finite"
    yield (
        "weights beyond float32",
        good | {"weights": np.full(5, 1e300)},
        "'weights' .*beyond float32's range",
    )
    yield (
        "one infinite temperature",
        good | {"temperatures": np.array([1, 1, 1, 1, np.inf])},
        "'temperatures'",
    )
    yield "shape", good | {"samples/1.bias": np.zeros((5, 4), np.float32)}, "names or shapes"
    yield "count", good | {"weights": np.ones(4)}, "names or shapes"
    yield "extra", good | {"samples/more": np.zeros(3, np.float32)}, "names or shapes"
    yield (
        "missing",
        {name: value for name, value in good.items() if name != "samples/1.bias"},
        "names or shapes",
    )
    yield (
        "no weights",
        {name: value for name, value in good.items() if name != "weights"},
        "weights",
    )
    yield (
        "type",
        good | {"samples/1.bias": np.zeros((5, 3), np.float64)},
        "float64: samples must be float32",
    )
    yield "weights type", good | {"weights": np.ones(5, np.float32)}, "weights.*all else float64"
    yield "negative", good | {"weights": -np.ones(5)}, "weights must be finite"
    yield "empty", tensors_of(samples_of(0)), "no sample"


@pytest.mark.parametrize(
    ("tensors", "message"), [pytest.param(t, m, id=i) for i, t, m in hostile_tensors()]
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, tensors, message):
    path = tmp_path / "p.safetensors"
    save_sealed(tensors, path, metadata={"fl_dpbayes": json.dumps(META)})
    refused(f"p.safetensors is not a posterior file.*{message}", load_posterior, path)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"other": "x"},
        {"fl_dpbayes": "not json"},
        {"format": 1},
        {"more": 1},
        {"model": {"kind": "resnet"}},
        {"model": {"kind": "mlp", "hidden": [10**9]}},
        {"model": {"kind": "cnn"}},
        {"model": {"kind": "cnn", "hidden": 2**62}, "task": IMAGES},
    ],
)
def test_metadata_that_does_not_fit_is_refused(tmp_path, metadata):
    path = tmp_path / "p.safetensors"
    if metadata and not {"other", "fl_dpbayes"} & metadata.keys():
        metadata = {"fl_dpbayes": json.dumps(META | metadata)}
    save_sealed(tensors_of(samples_of()), path, metadata=metadata)
    refused("is not a posterior file", load_posterior, path)


def test_a_type_that_numpy_has_not_is_refused(tmp_path):
    path = tmp_path / "p.safetensors"
    every = tensors_of(samples_of(1))
    half = {name: np.zeros(value.shape, np.float16) for name, value in every.items()}
    save_file(half, path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size].replace(b'"F16"', b'"BF16"'))
    metadata = {"__metadata__": PLACE_OF_SEAL | {"fl_dpbayes": json.dumps(META)}}
    text = json.dumps(metadata | header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    seal(path)
    refused("is not a posterior file.*BF16: it must be", load_posterior, path)


def test_any_flipped_bit_is_refused_and_so_is_what_is_no_whole_file(tmp_path):
    path = tmp_path / "p.safetensors"
    save_posterior(path, samples_of(), MODEL, TASK, "ab")
    good = path.read_bytes()
    bits = {place: bytes([good[place] ^ 1 << place % 8]) for place in range(0, len(good), 7)}
    flipped = [good[:place] + bit + good[place + 1 :] for place, bit in bits.items()]
    for content in (*flipped, good[:-8], b"", b"\xff" * 100, b"\x10" + bytes(40)):
        path.write_bytes(content)
        refused(r"p.safetensors is not a posterior file.*simulate --resume", load_posterior, path)


def test_file_of_an_older_version_and_a_missing_one_are_named(tmp_path):
    path = tmp_path / "p.safetensors"
    write_arrays(path, tensors_of(samples_of()), {"fl_dpbayes": json.dumps(META | {"format": 1})})
    refused(r"no checksum: an older version .* run its scenario again", load_posterior, path)
    refused("does not exist", load_posterior, tmp_path / "nothing.safetensors")
