import hashlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.task import BackboneFeatures
from fl_dpbayes.models.backbone import LAST_LAYER, backbone
from fl_dpbayes.models.feature_map import feature_map


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


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def stored(folder, content, name="weights.pth", architecture="resnet18", **options):
    """Write weights, or bytes as they are, and return what names them."""
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".safetensors":
        safetensors.torch.save_file(content, path)
    else:
        torch.save(content, path)
    return BackboneFeatures(architecture=architecture, weights=sha256(path), **options)


def saved(network, folder, name="weights.pth"):
    return stored(folder, network.state_dict(), name, image_size=64)


def images(*shape):
    return np.random.default_rng(0).random(shape, dtype=np.float32)


@pytest.mark.parametrize(("name", "channels"), [("weights.pth", 3), ("any name.safetensors", 1)])
def test_features_are_what_reaches_the_last_layer(network, tmp_path, name, channels):
    features = saved(network, tmp_path, name)
    records = images(3, channels, 64, 64)
    mapped = feature_map(features, (channels, 64, 64), backbone_folder=tmp_path)
    colours = torch.tensor(records).repeat(1, 3 // channels, 1, 1)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    standard = (colours - mean[:, None, None]) / deviation[:, None, None]
    found = mapped(records)
    assert found.shape == (3, *mapped.output_shape) == (3, 512)
    with torch.no_grad():
        torch.testing.assert_close(network.fc(torch.tensor(found)), network(standard), atol=1e-4, rtol=1e-4)


def test_features_of_a_record_do_not_depend_on_the_batch(network, tmp_path):
    mapped = feature_map(saved(network, tmp_path), (1, 28, 28), backbone_folder=tmp_path)
    records = images(5, 1, 28, 28)
    together = mapped(records)
    for rows in ([0], [4, 2]):
        np.testing.assert_allclose(mapped(records[rows]), together[rows], atol=1e-4, rtol=1e-4)


def test_backbone_is_frozen_and_draws_nothing(network, tmp_path):
    features, state = saved(network, tmp_path), torch.get_rng_state()
    module = backbone(features, tmp_path)
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert not any(tensor.is_meta for tensor in module.state_dict().values())
    assert torch.equal(torch.get_rng_state(), state)


def test_another_head_and_half_precision_are_taken(network, tmp_path):
    state = {name: value.half() for name, value in network.state_dict().items() if value.is_floating_point()}
    state |= {name: value for name, value in network.state_dict().items() if not value.is_floating_point()}
    state["fc.weight"], state["fc.bias"] = torch.zeros(2, 512), torch.zeros(2)
    module = backbone(stored(tmp_path, state), tmp_path)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("architecture", sorted(LAST_LAYER))
def test_number_of_features_is_the_width_of_the_last_layer(architecture):
    with torch.device("meta"):
        network = torchvision.models.get_model(architecture, weights=None)
    name, width = LAST_LAYER[architecture]
    assert [child for child, _ in network.named_children()][-1] == name
    linear = [module for module in getattr(network, name).modules() if isinstance(module, torch.nn.Linear)]
    assert [layer.in_features for layer in linear] == [width]


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
    with pytest.raises(UserError, match=f"does not hold the weights of {architecture}"):
        backbone(features, tmp_path)


def test_a_pickle_with_code_is_refused_without_running_it(tmp_path):
    class Code:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "was run",))

    features = stored(tmp_path, {"weight": Code()})
    with pytest.raises(UserError, match="not a file of weights alone"):
        backbone(features, tmp_path)
    assert not (tmp_path / "was run").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("a.pth", b"no pickle"), ("b.pth", b""), ("c.safetensors", b"no"), ("d.pt", b"PK\3\4cut")]
)
def test_a_damaged_file_is_refused(tmp_path, name, content):
    with pytest.raises(UserError, match="not a file of weights"):
        backbone(stored(tmp_path, content, name), tmp_path)


def test_weights_are_told_apart_by_digest_alone_and_no_file_outside_the_folder_is_reached(network, tmp_path):
    features = saved(network, tmp_path, "second.pth")
    stored(tmp_path, {name: torch.zeros_like(value) for name, value in network.state_dict().items()}, "first.pth")
    state = backbone(features, tmp_path).network.state_dict()
    assert torch.equal(state["conv1.weight"], network.conv1.weight)
    (tmp_path / "inside").mkdir()
    unknown = features.model_copy(update={"weights": "0" * 64})
    for wanted, folder, said in (
        (unknown, tmp_path, "none of the 2 weight files"),
        (features, tmp_path / "inside", "none of the 0 weight files"),
        (features, None, "set backbone_folder"),
    ):
        with pytest.raises(UserError, match=said):
            backbone(wanted, folder)


@pytest.mark.parametrize("weights", ["../weights.pth", "default", "A" * 64, "0" * 63])
def test_only_a_digest_names_weights(weights):
    with pytest.raises(ValueError, match="weights"):
        BackboneFeatures(weights=weights)


def test_a_failed_download_says_what_to_do_instead(monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise OSError("no network here")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(UserError, match="cannot be downloaded"):
        backbone(BackboneFeatures(architecture="resnet18"), None)
