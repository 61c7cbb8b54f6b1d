"""How the gradient of one unit is bounded before it enters the sum: the choices a plan can name.

Every rule bounds a unit's contribution by the clip norm C in the Euclidean norm over all parameters, whatever the data,
so the sensitivity is C and the account of the noise is the same under each.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from fl_dpbayes.config.base import Config


class FlatClipping(Config):
    """Factor min(1, C / |g|) (Abadi et al. 2016, Algorithm 1)."""

    kind: Literal["flat"] = "flat"


class GlobalClipping(Config):
    """Factor C / Z if |g| <= Z, falling linearly to 0 at 2 Z (Bu et al. 2021, global clipping, there 0 beyond Z).

    Every gradient within the bound Z >= C is scaled alike, so that their directions' mixture stays as it was. A factor
    that dropped to 0 at once would let the last bit of a norm move a contribution by C.
    """

    kind: Literal["global"] = "global"
    bound: PositiveFloat


class AutomaticClipping(Config):
    """Factor C / (|g| + stability): every gradient is normalised, none keeps its length (Bu et al. 2022, AUTO-S)."""

    kind: Literal["automatic"] = "automatic"
    # Far below it float32 holds neither a gradient's squares nor the factor of a gradient that vanishes.
    stability: Annotated[float, Field(ge=1e-6)] = 0.01


class PerLayerClipping(Config):
    """Factor min(1, C / (sqrt(L) |g_l|)) for each of the L layers (McMahan et al. 2018, section 3.2).

    A layer is a module that owns trainable parameters: its weight and bias together.
    """

    kind: Literal["per-layer"] = "per-layer"


Clipping = Annotated[FlatClipping | GlobalClipping | AutomaticClipping | PerLayerClipping, Field(discriminator="kind")]

FLAT = FlatClipping()
