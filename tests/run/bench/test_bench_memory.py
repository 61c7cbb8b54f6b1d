"""The server's memory does not grow with the number of sites; shown small here, large by `bench memory`."""

import io
import re

import pytest
from rich.console import Console

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.run.bench.memory import bench_memory


def measured(folder, **sizes):
    console = Console(width=200, file=io.StringIO(), record=True)
    bench_memory(console, folder=folder, **sizes)
    text = console.export_text()

    def figure(name):
        found = re.search(rf"{name}\W+([\d.]+)", text)
        assert found
        return float(found.group(1))

    assert list(folder.iterdir()) == []
    return figure("samples of all sites"), figure("resident before the run"), figure("greatest resident memory")


@pytest.mark.slow
def test_peak_is_far_below_what_the_sites_sent(tmp_path):
    # All samples are 570 MiB; without reading piece by piece the peak is above them, and twice that when written.
    stored, before, peak = measured(tmp_path, sites=75, samples=20, parameters=100_000)
    assert stored > 550
    assert peak - before < 270


def test_too_small_a_disk_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="MiB left"):
        bench_memory(Console(), sites=9999, samples=1000, parameters=50_000_000, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
