import pytest
import torch
from torch import nn

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.task import CNNModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.rows import validate_module


def with_batch_norm(**options):
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, **options), nn.Linear(4, 2))


def test_shipped_model_and_group_norm_pass():
    validate_module(build_model(CNNModel(), Task(input_shape=(1, 8, 8), classes=2), seed=0))
    validate_module(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 2)))


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"affine": False, "track_running_stats": False}])
def test_batch_norm_is_refused_with_layer_and_remedy(options):
    with pytest.raises(UserError, match=r"layer '1' \(BatchNorm1d\).*GroupNorm"):
        validate_module(with_batch_norm(**options))


def test_frozen_batch_norm_passes_only_in_eval_mode():
    module = with_batch_norm()
    module[1].requires_grad_(False)
    with pytest.raises(UserError, match="call eval"):
        validate_module(module)
    module[1].eval()
    validate_module(module)


def test_frozen_batch_norm_without_stored_statistics_is_refused():
    module = with_batch_norm(track_running_stats=False).eval()
    module[1].requires_grad_(False)
    with pytest.raises(UserError, match="stored statistics"):
        validate_module(module)


def test_root_that_is_itself_a_bad_layer_is_named():
    with pytest.raises(UserError, match="layer 'BatchNorm1d'"):
        validate_module(nn.BatchNorm1d(3))


def test_layer_that_opacus_refuses_is_refused():
    with pytest.raises(UserError, match=r"layer '0' .*LSTM"):
        validate_module(nn.Sequential(nn.LSTM(3, 3)))
    with pytest.raises(UserError, match="InstanceNorm2d"):
        validate_module(nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)))


def test_frozen_batch_norm_that_passes_keeps_its_statistics():
    module = with_batch_norm()
    module[1].requires_grad_(False)
    module[1].eval()
    before = module[1].running_mean.clone()
    module(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(before, module[1].running_mean)
