"""Records on a device: copied once while they stand, and never another's; a share of the GPU's memory."""

import gc
from unittest import mock

import numpy as np
import torch

from fl_dpbayes.models import on_device

META = torch.device("meta")


def fixed(values) -> np.ndarray:
    array = np.array(values, np.float32)
    array.flags.writeable = False
    return array


def test_records_that_cannot_be_written_are_copied_once_and_others_each_time() -> None:
    first, second = fixed([1.0, 2.0]), fixed([3.0])
    kept = on_device.uploaded(first, META)
    assert on_device.uploaded(first, META) is kept
    assert on_device.uploaded(second, META).shape == (1,)
    assert on_device.uploaded(first, META, torch.float16).dtype == torch.float16
    number = id(first)
    del first
    gc.collect()
    # Python gives the place of what is gone to another array.
    others = [fixed([5.0]) for _ in range(1000)]
    assert all(on_device.uploaded(each, META).shape == (1,) for each in others if id(each) == number)
    changing = np.zeros(3, np.float32)
    assert on_device.uploaded(changing, META) is not on_device.uploaded(changing, META)
    # On the host nothing is copied.
    assert on_device.uploaded(second, torch.device("cpu")).data_ptr() == second.ctypes.data


def test_copies_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(on_device, "_UPLOADED", on_device.Kept(100))
    small, large = fixed(np.zeros(25)), fixed(np.zeros(26))
    assert on_device.uploaded(small, META) is on_device.uploaded(small, META)
    assert on_device.uploaded(large, META) is not on_device.uploaded(large, META)


def test_a_process_takes_the_share_that_ray_counts(monkeypatch) -> None:
    ray, limit = mock.Mock(), mock.Mock()
    ray.get_runtime_context().get_assigned_resources.return_value = {"CPU": 1.0, "GPU": 0.25}
    monkeypatch.setitem(on_device.sys.modules, "ray", ray)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limit)
    on_device.keep_share(torch.device("cpu"))
    limit.assert_not_called()
    on_device.keep_share(torch.device("cuda", 0))
    limit.assert_called_once_with(0.25, torch.device("cuda", 0))
