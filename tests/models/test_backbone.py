import hashlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision

from fl_dpbayes.config.task import BackboneFeatures
from fl_dpbayes.models.backbone import LAST_LAYER, MEAN, STANDARD_DEVIATION, backbone
from fl_dpbayes.models.feature_map import feature_map
from tests.asking import refused


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = torchvision.models.resnet18(weights=None)
    # Statistics unlike those of a batch, so that training mode would show.
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.fill_(0.1)
            module.running_var.fill_(2.0)
    return network.eval()


def stored(folder, content, name="weights.pth", architecture="resnet18", **options):
    """Write weights, or bytes as they are, and return what names them."""
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".safetensors":
        safetensors.torch.save_file(content, path)
    else:
        torch.save(content, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return BackboneFeatures(architecture=architecture, weights=digest, **options)


@pytest.fixture(scope="module")
def files(network, tmp_path_factory):
    """A folder with the network's weights in two formats, and what names them."""
    folder = tmp_path_factory.mktemp("backbones")
    state = network.state_dict()
    return folder, [
        stored(folder, state, name, image_size=64)
        for name in ("weights.pth", "any name.safetensors")
    ]


def images(*shape):
    return np.random.default_rng(0).random(shape, dtype=np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "channels"), [pytest.param(0, 3, marks=pytest.mark.slow), (1, 1)]
)
def test_features_are_what_reaches_the_last_layer_whatever_the_batch(
    network, files, number, channels
):
    folder, named = files
    records = images(3, channels, 64, 64)
    mapped = feature_map(named[number], (channels, 64, 64), backbone_folder=folder)
    colours = torch.tensor(records).repeat(1, 3 // channels, 1, 1)
    mean = torch.tensor([0.485, 0.456, 0.406])
    deviation = torch.tensor([0.229, 0.224, 0.225])
    standard = (colours - mean[:, None, None]) / deviation[:, None, None]
    found = mapped(records)
    assert found.shape == (3, *mapped.output_shape) == (3, 512)
    with torch.no_grad():
        torch.testing.assert_close(
            network.fc(torch.tensor(found)), network(standard), atol=1e-4, rtol=1e-4
        )
    np.testing.assert_allclose(mapped(records[[2, 0]]), found[[2, 0]], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_vision_transformer_gives_what_reaches_its_heads(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = torchvision.models.vit_b_16(weights=None).eval()
        # They are 0 at first, and would make every picture look alike.
        torch.nn.init.normal_(network.heads.head.weight)
    named = stored(tmp_path, network.state_dict(), architecture="vit_b_16")
    pictures = torch.tensor(images(2, 3, 64, 64))
    resized = torch.nn.functional.interpolate(
        pictures, size=(224, 224), mode="bilinear", antialias=True
    )
    mean, deviation = torch.tensor(MEAN), torch.tensor(STANDARD_DEVIATION)
    standard = (resized - mean[:, None, None]) / deviation[:, None, None]
    found = backbone(named, tmp_path)(pictures)
    assert found.shape == (2, 768)
    with torch.no_grad():
        torch.testing.assert_close(network.heads(found), network(standard), atol=1e-4, rtol=1e-4)


def test_a_vision_transformer_has_one_size_of_images():
    with pytest.raises(ValueError, match="image_size is 32: vit_b_16 takes images of 224"):
        BackboneFeatures(architecture="vit_b_16", image_size=32)


def test_backbone_is_frozen_and_draws_nothing(files):
    folder, (features, _) = files
    state = torch.get_rng_state()
    module = backbone(features, folder)
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert not any(tensor.is_meta for tensor in module.state_dict().values())
    assert torch.equal(torch.get_rng_state(), state)


def test_another_head_and_half_precision_are_taken(network, tmp_path):
    state = {
        name: value.half() if value.is_floating_point() else value
        for name, value in network.state_dict().items()
    }
    state["fc.weight"] = torch.zeros(2, 512)
    state["fc.bias"] = torch.zeros(2)
    module = backbone(stored(tmp_path, state), tmp_path)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("architecture", sorted(LAST_LAYER))
def test_number_of_features_is_the_width_of_the_last_layer(architecture):
    with torch.device("meta"):
        network = torchvision.models.get_model(architecture, weights=None)
    name, width = LAST_LAYER[architecture]
    assert [child for child, _ in network.named_children()][-1] == name
    linear = [
        module for module in getattr(network, name).modules() if isinstance(module, torch.nn.Linear)
    ]
    assert [layer.in_features for layer in linear] == [width]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "spoil"),
    [
        ("resnet50", lambda state: state),
        ("resnet18", lambda state: state | {"conv1.weight": torch.zeros(64, 1, 7, 7)}),
        ("resnet18", lambda state: dict.fromkeys(state, "text")),
    ],
    ids=["another architecture", "a wrong shape", "no tensors"],
)
def test_other_weights_are_refused(network, tmp_path, architecture, spoil):
    features = stored(tmp_path, spoil(network.state_dict()), architecture=architecture)
    refused(f"does not hold the weights of {architecture}", backbone, features, tmp_path)


def test_a_pickle_with_code_is_refused_without_running_it(tmp_path):
    class Code:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "was run",))

    features = stored(tmp_path, {"weight": Code()})
    refused("not a file of weights alone", backbone, features, tmp_path)
    assert not (tmp_path / "was run").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.pth", b"no pickle"), ("b.pth", b""), ("c.safetensors", b"no"), ("d.pt", b"PK\3\4cut")],
)
def test_a_damaged_file_is_refused(tmp_path, name, content):
    refused("not a file of weights", backbone, stored(tmp_path, content, name), tmp_path)


def test_weights_are_told_apart_by_digest_alone_and_no_file_outside_the_folder_is_reached(
    network, files, tmp_path
):
    folder, (features, _) = files
    stored(folder, {"conv1.weight": torch.zeros(1)}, "first.pth")
    assert torch.equal(backbone(features, folder).network.conv1.weight, network.conv1.weight)
    unknown = features.model_copy(update={"weights": "0" * 64})
    for wanted, place, said in (
        (unknown, folder, "none of the 3 weight files"),
        (features, tmp_path, "none of the 0 weight files"),
        (features, None, "set backbone_folder"),
    ):
        refused(said, backbone, wanted, place)


@pytest.mark.parametrize("weights", ["../weights.pth", "default", "A" * 64, "0" * 63])
def test_only_a_digest_names_weights(weights):
    with pytest.raises(ValueError, match="weights"):
        BackboneFeatures(weights=weights)


def test_a_failed_download_says_what_to_do_instead(monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise OSError("no network here")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    refused("cannot be downloaded", backbone, BackboneFeatures(architecture="resnet18"), None)
