"""What a scenario says about records that are made up, so that the truth behind each label is known."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from fl_dpbayes.config.base import Config

# A part of this many pixels takes half a gibibyte as grey levels, two as float32.
MAX_PIXELS = 2**29
Coefficient = Annotated[float, Field(ge=-100, le=100)]


class SyntheticSites(Config):
    """Records of natural sites `site-1`, `site-2`, ..., of equal size, with known p(y | x) at each.

    `records` and `test_records` are how many the parts `train` and `test` hold, over all sites. `heterogeneity` is how
    much the sites differ, in what they record and in how they label it; at 0 they are alike. The same `seed` gives the
    same hospitals and patients, whatever the scenario's own seed is.
    """

    records: Annotated[int, Field(ge=2, le=1_000_000)] = 6000
    test_records: Annotated[int, Field(ge=2, le=1_000_000)] = 2000
    sites: Annotated[int, Field(ge=1, le=1000)] = 6
    heterogeneity: Annotated[float, Field(ge=0, le=3)] = 0.5
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _sites_have_records(self) -> "SyntheticSites":
        for key in ("records", "test_records"):
            count = getattr(self, key)
            if count < self.sites:
                raise ValueError(f"{key} is {count} for {self.sites} sites: give each site at least one record")
        return self


class Logistic2D(SyntheticSites):
    """Points in the plane and a label by logistic regression, see `logistic_2d.py`.

    `intercept` and `slopes` are those of the average site.
    """

    kind: Literal["logistic-2d"] = "logistic-2d"
    intercept: Coefficient = 0.0
    slopes: tuple[Coefficient, Coefficient] = (1.5, -1.0)


class Radiographs(SyntheticSites):
    """Chest-like grey pictures with an opacity, whose contrast decides on the label, see `radiographs.py`.

    `side`: pixels per row and column. `steepness` and `threshold`: the log odds of label 1 rise by `steepness` per unit
    of contrast (0 to 1) and are even at `threshold`, at the average site.
    """

    kind: Literal["radiographs"] = "radiographs"
    side: Annotated[int, Field(ge=8, le=224)] = 28
    steepness: Annotated[PositiveFloat, Field(le=100)] = 10.0
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5

    @model_validator(mode="after")
    def _pixels_fit_memory(self) -> "Radiographs":
        for key in ("records", "test_records"):
            most = MAX_PIXELS // self.side**2
            if getattr(self, key) > most:
                raise ValueError(f"{key} is {getattr(self, key)}: at side {self.side} at most {most} are made")
        return self
