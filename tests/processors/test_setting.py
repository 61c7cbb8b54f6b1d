"""The setting under which tests are run again is really in force: a variable that nobody read would prove nothing."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from fl_dpbayes.models.conditional_reproducibility import reproducible_branch
from tests.processors.another_maker import MAKER

EXPECTED_MKL = os.environ.get("EXPECTED_MKL")
CONVOLUTION = (
    "import torch\ntorch.nn.functional.conv2d(torch.ones(2, 1, 8, 8), torch.ones(3, 1, 3, 3))"
)

pytestmark = pytest.mark.skipif(
    EXPECTED_MKL is None, reason="`make test-processors` sets something"
)


def test_products_are_computed_in_mkl_s_way() -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)
    branch = reproducible_branch()
    if branch == "none":
        pytest.skip("torch's products are not MKL's here")
    # On another maker's processor MKL takes AVX2 for AUTO.
    assert branch in EXPECTED_MKL.split(" or ")


def test_torch_has_the_threads_and_the_kernels() -> None:
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
    if os.environ.get("ATEN_CPU_CAPABILITY") == "default":
        assert torch.backends.cpu.get_cpu_capability() == "DEFAULT"


def test_convolutions_use_no_more_than_they_may() -> None:
    most = os.environ.get("ONEDNN_MAX_CPU_ISA")
    if most is None:
        pytest.skip("nothing was set")
    told = subprocess.run(
        [sys.executable, "-c", CONVOLUTION],
        env=os.environ | {"ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"isa:Intel {most}" in told.stdout


def test_the_processor_is_taken_for_another() -> None:
    if "LD_PRELOAD" not in os.environ:
        pytest.skip("the processor is what it is")
    name = ctypes.create_string_buffer(13)
    ctypes.CDLL(None).processor_maker(name)
    assert name.value.decode() == MAKER
