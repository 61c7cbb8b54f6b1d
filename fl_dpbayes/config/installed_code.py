"""The installed files that a name of code stands for."""

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    packages_distributions,
    requires,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fl_dpbayes.config.kinds import HOME
from fl_dpbayes.config.names import OutsideText
from fl_dpbayes.config.sampler import SAMPLERS
from fl_dpbayes.files import KEPT, Config

PACKAGE = "fl-dpbayes"
PACKAGE_FOLDERS = ("fl_dpbayes", "clients", "server")


class InstalledCode(Config):
    """What a name of code, a factory or a registered sampler's kind, stands for on a machine.

    Attributes:
        name: The factory, or the kind.
        distribution: Name of the distribution that installed it; empty where there is none.
        version: Version of the distribution.
        digest: SHA-256 over all files of its distribution's packages, by their paths in order.
    """

    name: OutsideText
    distribution: OutsideText = ""
    version: OutsideText = ""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def described(self) -> str:
        """Say distribution, version and the beginning of the digest."""
        return (
            f"{self.distribution or 'no distribution'} {self.version} (SHA-256 {self.digest[:12]})"
        )


def installed_code(name: str) -> InstalledCode | None:
    """Find the code that a name stands for here, importing nothing of it.

    Returns:
        The code; None where it is not installed.
    """
    sampler = SAMPLERS.loaded().get(name)
    module_name = sampler.implemented_by if sampler is not None else name
    top = module_name.partition(":")[0].partition(".")[0]
    places = _places(top)
    if not places:
        return None
    owner = next(iter(_owners().get(top, ())), "")
    other_modules = sorted(
        module for module, owners in _owners().items() if owner in owners and module != top
    )
    for module in other_modules:
        places += _places(module)
    version = distribution(owner).version if owner else ""
    return InstalledCode(
        name=name, distribution=owner, version=version, digest=files_digest(places)
    )


def installed_package() -> InstalledCode:
    """Find this package with its two apps, where they are imported from.

    Those of an editable install are a checkout's.
    """
    places = tuple(HOME / folder for folder in PACKAGE_FOLDERS)
    try:
        version = distribution(PACKAGE).version
    except PackageNotFoundError:
        version = ""
    return InstalledCode(
        name=PACKAGE, distribution=PACKAGE, version=version, digest=files_digest(places)
    )


def files_digest(places: tuple[Path, ...]) -> str:
    """Return the SHA-256 over all files of folders, or of modules, by their paths in order.

    What Python compiles for itself, `__pycache__`, is left out: it differs from machine to machine.
    """
    in_order = sorted({named for place in places for named in _named_files(place)})

    def read() -> str:
        digest = hashlib.sha256()
        for name, path in in_order:
            if os.path.isfile(path):
                content = Path(path).read_bytes()
                digest.update(f"{name}\n{len(content)}\n".encode() + content)
        return digest.hexdigest()

    return KEPT.get(("files digest", places), read, len, [path for _, path in in_order])


def _named_files(place: Path) -> Iterator[tuple[str, str]]:
    """List a file, or a folder with all below it: names below the place's folder, and paths.

    A site looks at every message: texts, for an object for each path takes ten times as long.
    """
    start = len(str(place.parent / "_")) - 1
    yield str(place)[start:], str(place)
    for folder, folder_names, file_names in os.walk(place, followlinks=True):
        folder_names[:] = [name for name in folder_names if name != "__pycache__"]
        for name in (*folder_names, *file_names):
            path = os.path.join(folder, name)
            yield path[start:], path


def _places(top: str) -> tuple[Path, ...]:
    """Return the folders, or the file, of a top-level module; none where it is not installed."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations:
        return tuple(map(_on_disk, spec.submodule_search_locations))
    if spec.has_location and spec.origin:
        return (_on_disk(spec.origin),)
    return ()


def _on_disk(location: str) -> Path:
    """Return the place of code, or its archive: `ownnet.zip` of `ownnet.zip/ownnet`."""
    place = Path(location)
    return next((path for path in (place, *place.parents) if path.exists()), place)


@lru_cache(maxsize=1)
def _owners() -> Mapping[str, list[str]]:
    return packages_distributions()


@lru_cache(maxsize=1)
def foundations() -> frozenset[str]:
    """Return the top-level modules of Python, of this package and of all that it needs.

    It needs distributions, those need others, and so on; pip counts with them. None of these
    modules is code that a scenario may name.
    """
    needed: set[str] = set()
    to_visit = [PACKAGE, "flwr", "opacus", "torchvision", "pip"]
    while to_visit:
        name = _normal(to_visit.pop())
        if name in needed:
            continue
        needed.add(name)
        try:
            requirements = requires(name) or ()
        except PackageNotFoundError:
            continue
        to_visit += [text for text in requirements if "extra ==" not in text]
    modules = {
        module
        for module, owners in _owners().items()
        if needed & {_normal(owner) for owner in owners}
    }
    return frozenset({*PACKAGE_FOLDERS, *modules, *sys.stdlib_module_names})


def _normal(requirement: str) -> str:
    """Return the normal form of the name that a requirement begins with."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()
