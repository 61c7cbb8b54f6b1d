"""The library of images, torchvision, which a hospital installs only where it has images or frozen bodies."""

from fl_dpbayes.errors import UserError


class NotInstalledError(UserError, ImportError):
    """A library that this work needs is not installed; a site answers INSTALLATION_BROKEN."""


def require_torchvision() -> None:
    """Raise NotInstalledError, with what to install, if torchvision cannot be imported."""
    try:
        import torchvision  # noqa: F401
    except ImportError as error:
        remedy = (
            "install it as hospital-images.txt of the wheelhouse lists it, or  pip "
            "install torchvision"
        )
        said = (
            "images and frozen bodies need torchvision, which cannot be imported "
            f"({str(error)[:200]})"
        )
        raise NotInstalledError(f"{said}: {remedy}") from None
