"""The library of images, torchvision.

A hospital installs it only where it has images or frozen bodies.
"""

from fl_dpbayes.errors import UserError


class NotInstalledError(UserError, ImportError):
    """A library that this work needs is not installed; a site answers INSTALLATION_BROKEN."""


def require_torchvision() -> None:
    """Check that torchvision can be imported.

    Raises:
        NotInstalledError: It cannot; the error says what to install.
    """
    try:
        import torchvision  # noqa: F401
    except ImportError as error:
        remedy = (
            "install it as hospital-images.txt of the wheelhouse lists it, or  pip "
            "install torchvision"
        )
        problem = (
            "images and frozen bodies need torchvision, which cannot be imported "
            f"({str(error)[:200]})"
        )
        raise NotInstalledError(f"{problem}: {remedy}") from None
