"""Our accountant in Opacus: privacy-loss distributions of the steps that its optimizer takes."""

from typing import Any

from fl_dpbayes.privacy import pld_epsilon, read_history


def register_opacus_accountant() -> None:
    """Register our accountant with Opacus 1.6, so that `PrivacyEngine(accountant="pld")` uses it.

    Its epsilon is an upper bound, for adding or removing one record and Poisson sampling
    (`poisson_sampling=True`).
    """
    # Importing Opacus takes over a second.
    from opacus.accountants import RDPAccountant, register_accountant

    class PLDAccountant(RDPAccountant):
        def get_epsilon(self, delta: float, **_: Any) -> float:
            return pld_epsilon(read_history(self.history), delta)

        @classmethod
        def mechanism(cls) -> str:
            return "pld"

    register_accountant("pld", PLDAccountant, force=True)
