"""Records that a program registers itself are read, listed and refused as those of the package."""

from typing import ClassVar, Literal

import pytest

from fl_dpbayes.config import SGLD, SamplerSettings, load_scenario, register_sampler
from fl_dpbayes.config.sampler import SAMPLERS
from fl_dpbayes.errors import UserError
from tests.asking import refused


class Own(SamplerSettings):
    implemented_by: ClassVar[str] = "own.code"
    kind: Literal["own", "dp-own"]


class WithoutCode(SamplerSettings):
    kind: Literal["own", "dp-own"]


class Taken(SamplerSettings):
    implemented_by: ClassVar[str] = "own.code"
    kind: Literal["dp-sgd"]


class OfNoKind(SamplerSettings):
    implemented_by: ClassVar[str] = "own.code"
    kind: str


class TwicePrivate(SamplerSettings):
    implemented_by: ClassVar[str] = "own.code"
    kind: Literal["own", "dp-dp-own"]


class Unprintable(SamplerSettings):
    implemented_by: ClassVar[str] = "own.code"
    kind: Literal["\x1b[2J"]


def test_no_sampler_is_private_by_its_name_alone() -> None:
    with pytest.raises(UserError, match="SaysItself sets is_private: leave it out"):

        class SaysItself(Own):
            is_private: ClassVar[bool] = False


@pytest.fixture(autouse=True)
def shipped_alone(monkeypatch):
    SAMPLERS.loaded()
    monkeypatch.setattr(SAMPLERS, "records", dict(SAMPLERS.records))


def test_registered_sampler_is_read_and_listed_with_the_others() -> None:
    own = ["sampler={kind='dp-own'}", "privacy.coupling=constant", "privacy.temperature="]
    refused("sampler: kind 'dp-own': choose one of 'sgld', 'dp-sgld'", load_scenario, "digits", own)
    assert register_sampler(Own) is Own
    scenario = load_scenario("digits", own)
    assert type(scenario.sampler) is Own
    assert scenario.named_code == ("dp-own",)
    refused("'dp-mc-dropout', 'own', 'dp-own'", load_scenario, "digits", ["sampler.kind=hmc"])
    # Read again, as a notebook's cell is.
    register_sampler(Own)
    register_sampler(SGLD)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (WithoutCode, "is no subclass of SamplerSettings with implemented_by"),
        (int, "is no subclass of SamplerSettings"),
        (OfNoKind, 'OfNoKind has the kinds none: give it  kind: Literal."name".'),
        (TwicePrivate, "has the kinds 'own', 'dp-dp-own': give"),
        (Unprintable, r"has the kinds '.x1b.2J': give"),
        (Taken, "Taken takes the name 'dp-sgd', which is another's: give it a kind of its own"),
    ],
)
def test_record_that_does_not_fit_is_refused(record, said: str) -> None:
    with pytest.raises(UserError, match=said):
        register_sampler(record)
