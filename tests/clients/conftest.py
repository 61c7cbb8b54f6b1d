import pytest

from tests.asking import ROWS


@pytest.fixture
def site(table_site):
    """A hospital's node with a table of fifty patients."""
    written = table_site()
    written.write(ROWS)
    return written
