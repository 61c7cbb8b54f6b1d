import pytest

from tests.analytic_targets import LinearSites, linear_sites


@pytest.fixture(scope="session")
def linear_gaussian() -> LinearSites:
    return linear_sites(diagonal=False)


@pytest.fixture(scope="session")
def orthogonal() -> LinearSites:
    return linear_sites(diagonal=True)
