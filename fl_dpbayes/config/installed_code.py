"""Installed code that a run uses: records that other packages register, and which files a name of code stands for."""

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    entry_points,
    packages_distributions,
    requires,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Union, get_args

from pydantic import BaseModel, Field

from fl_dpbayes.config.kinds import HOME
from fl_dpbayes.config.names import OutsideText
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, Config, files_below

SAMPLERS, RULES, SOURCES = "fl_dpbayes.samplers", "fl_dpbayes.rules", "fl_dpbayes.sources"
PACKAGE = "fl-dpbayes"
PACKAGE_FOLDERS = ("fl_dpbayes", "clients", "server")
# Kind of a registered record -> the module that implements it.
_modules: dict[str, str] = {}


class InstalledCode(Config):
    """What a name of code, a factory or a registered sampler's kind, stands for on a machine.

    `digest`: SHA-256 over all files of its distribution's packages, by their paths in order.
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

    None where it is not installed.
    """
    top = _modules.get(name, name).partition(":")[0].partition(".")[0]
    places = _places(top)
    if not places:
        return None
    owner = next(iter(_owners().get(top, ())), "")
    beside = sorted(
        module for module, owners in _owners().items() if owner in owners and module != top
    )
    places += tuple(place for module in beside for place in _places(module))
    version = distribution(owner).version if owner else ""
    return InstalledCode(
        name=name, distribution=owner, version=version, digest=files_digest(places)
    )


def installed_package() -> InstalledCode:
    """Find this package with its two apps, where they are imported from: an editable install's are a checkout's."""
    places = tuple(HOME / folder for folder in PACKAGE_FOLDERS)
    try:
        version = distribution(PACKAGE).version
    except PackageNotFoundError:
        version = ""
    return InstalledCode(
        name=PACKAGE, distribution=PACKAGE, version=version, digest=files_digest(places)
    )


@lru_cache(maxsize=1)
def registered_modules() -> tuple[str, ...]:
    """Name the modules of other packages that are imported for the records that they register here."""
    points = [point for group in (SAMPLERS, RULES, SOURCES) for point in entry_points(group=group)]
    return tuple(sorted({point.module for point in points}))


def files_digest(places: tuple[Path, ...]) -> str:
    """Return the SHA-256 over all files of folders, or of modules, by their paths in order.

    What Python compiles for itself, `__pycache__`, is left out: it differs from machine to machine.
    """
    files = {
        (path, place)
        for place in places
        for path in files_below([place])
        if "__pycache__" not in path.parts
    }
    named = sorted((path.relative_to(place.parent).as_posix(), path) for path, place in files)

    def read() -> str:
        known = hashlib.sha256()
        for shown, path in named:
            if path.is_file():
                content = path.read_bytes()
                known.update(f"{shown}\n{len(content)}\n".encode() + content)
        return known.hexdigest()

    return KEPT.get(("files digest", places), read, len, [path for _, path in named])


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
    return (_on_disk(spec.origin),) if spec.has_location and spec.origin else ()


def _on_disk(location: str) -> Path:
    """Return the place of code, or the archive that holds it: `ownnet.zip` of `ownnet.zip/ownnet`."""
    place = Path(location)
    return next((path for path in (place, *place.parents) if path.exists()), place)


@lru_cache(maxsize=1)
def _owners() -> Mapping[str, list[str]]:
    return packages_distributions()


@lru_cache(maxsize=1)
def foundations() -> frozenset[str]:
    """Find the top-level modules of Python, of this package, and of all distributions that it needs, however far down.

    None of them is code that a scenario may name; pip counts with them.
    """
    needed: set[str] = set()
    asked = [PACKAGE, "flwr", "opacus", "torchvision", "pip"]
    while asked:
        if (name := _normal(asked.pop())) not in needed:
            needed.add(name)
            try:
                asked += [each for each in requires(name) or () if "extra ==" not in each]
            except PackageNotFoundError:
                continue
    tops = {
        top for top, owners in _owners().items() if needed & {_normal(owner) for owner in owners}
    }
    return frozenset({*PACKAGE_FOLDERS, *tops, *sys.stdlib_module_names})


def _normal(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def extended(
    namespace: dict[str, Any], name: str, group: str, base: type[Config]
) -> Callable[[str], Any]:
    """Take a union of records out of a module, and give what makes the longer one when it is asked for.

    The records of a group of entry points join those of the union. They are loaded that late since
    a record's module imports that of its base. `namespace`: of the module, whose `__getattr__` the
    returned function is to be. Asking raises UserError if an entry point cannot be loaded, names no
    record of `base` with its code, or has a taken kind.
    """
    shipped, field = get_args(namespace.pop(name))

    def get(asked: str) -> Any:
        if asked != name:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {asked!r}")
        records = list(get_args(shipped))
        taken = {kind for record in records for kind in kinds_of(record)}
        for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
            said = f"entry point {point.name!r} of {group} ({point.value})"
            try:
                record: Any = point.load()
            except Exception as error:
                why = (
                    f"{type(error).__name__}: {str(error)[:200]}; keep the record in a "
                    "module of its own"
                )
                raise UserError(
                    f"{said} cannot be loaded: {why}, or uninstall the package"
                ) from None
            fits = isinstance(record, type) and issubclass(record, base)
            if not fits or not getattr(record, "implemented_by", ""):
                raise UserError(
                    f"{said} is no subclass of {base.__name__} with implemented_by, the "
                    "module of its code"
                )
            kinds = kinds_of(record)
            # The private and the other form of a sampler are one algorithm.
            if (
                both := {f"dp-{kind}" for kind in kinds} & taken
                | {kind.removeprefix("dp-") for kind in kinds} & taken
            ):
                raise UserError(
                    f"{said} takes the name {min(both)!r}, which is another's: give it a "
                    "kind of its own"
                )
            taken |= kinds
            _modules.update(dict.fromkeys(kinds, record.implemented_by))
            records.append(record)
        namespace[name] = Annotated[Union[tuple(records)], field]  # noqa: UP007
        return namespace[name]

    return get


def kinds_of(record: type[BaseModel]) -> set[str]:
    """Return the kinds, or rules, that a record may have."""
    fields = [record.model_fields[key] for key in ("kind", "rule") if key in record.model_fields]
    return {
        kind for field in fields for kind in get_args(field.annotation) if isinstance(kind, str)
    }
