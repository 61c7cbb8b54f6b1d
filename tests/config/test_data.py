import pytest
from pydantic import ValidationError

from fl_dpbayes.config.data import DataSpec, SiteSpec
from fl_dpbayes.config.sources import BuiltIn


def test_a_source_may_be_named_by_its_kind():
    assert DataSpec(source="digits") == DataSpec(source={"kind": "digits"})
    assert DataSpec(source="mnist").source == BuiltIn(kind="mnist")


@pytest.mark.parametrize("source", ["cifar", {"kind": "digits", "pth": "x"}, {"kind": "table"}, 3])
def test_an_unknown_source_is_refused(source):
    with pytest.raises(ValidationError):
        DataSpec(source=source)


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_something_must_be_left_to_train_on(fraction):
    with pytest.raises(ValidationError, match="test_fraction"):
        DataSpec(source="digits", test_fraction=fraction)


@pytest.mark.parametrize("keys", [{"part": "test"}, {"records": 10}])
def test_a_training_site_takes_its_share_of_the_training_part(keys):
    with pytest.raises(ValidationError, match="held_out and shifted"):
        SiteSpec(role="train", **keys)
    assert SiteSpec(role="held_out", **keys)
