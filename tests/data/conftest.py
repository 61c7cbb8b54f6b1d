import os
from pathlib import Path

import pytest


@pytest.fixture
def data_folder() -> Path:
    """The data folder, where there is one."""
    folder = os.environ.get("FL_DPBAYES_DATA")
    if not folder:
        pytest.skip("FL_DPBAYES_DATA is not set: MNIST, PneumoniaMNIST and heart disease are not at hand")
    return Path(folder)
