"""Records on a device: copied once while they stand, and never another's.

A share of the GPU's memory.
"""

from unittest import mock

import numpy as np
import pytest
import torch

from fl_dpbayes.models import on_device

META = torch.device("meta")


def fixed(size: int) -> np.ndarray:
    array = np.zeros(size, np.float32)
    array.flags.writeable = False
    return array


def test_records_that_cannot_be_written_are_copied_once_within_bounds_and_others_each_time(
    monkeypatch,
) -> None:
    monkeypatch.setattr(on_device, "_UPLOADED", on_device.Kept(200))
    first = fixed(20)
    large = fixed(51)
    changing = np.zeros(3, np.float32)
    kept = on_device.uploaded(first, META)
    assert on_device.uploaded(first, META) is kept
    assert on_device.uploaded(first, META, torch.float16).dtype == torch.float16
    for other in (large, changing):
        assert on_device.uploaded(other, META) is not on_device.uploaded(other, META)
    # Python gives the place of what is gone to another array.
    monkeypatch.setattr(on_device, "id", lambda _: id(first), raising=False)
    assert on_device.uploaded(fixed(5), META).shape == (5,)
    # On the host nothing is copied.
    assert on_device.uploaded(first, torch.device("cpu")).data_ptr() == first.ctypes.data


@pytest.mark.parametrize("mode", [0, 1])
def test_a_worker_takes_the_share_that_ray_counts(monkeypatch, mode) -> None:
    ray = mock.Mock(WORKER_MODE=1)
    limit = mock.Mock()
    ray.get_runtime_context().worker.mode = mode
    ray.get_runtime_context().get_assigned_resources.return_value = {"CPU": 1.0, "GPU": 0.25}
    monkeypatch.setitem(on_device.sys.modules, "ray", ray)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limit)
    for device in ("cpu", "cuda"):
        on_device.keep_share(torch.device(device))
    assert limit.mock_calls == [mock.call(0.25, None)] * mode
