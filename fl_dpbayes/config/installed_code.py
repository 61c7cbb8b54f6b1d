"""Code beside this package that a run uses: records that installed packages register, and which code a name means."""

import hashlib
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution, entry_points, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Union, get_args

from pydantic import BaseModel, Field

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.kept import files_below
from fl_dpbayes.config.names import OutsideText

SAMPLERS, RULES, SOURCES = "fl_dpbayes.samplers", "fl_dpbayes.rules", "fl_dpbayes.sources"
# Kind of a registered record -> the module that implements it.
_modules: dict[str, str] = {}


class InstalledCode(Config):
    """What a name of code, a factory or a registered sampler's kind, stands for on a machine.

    `digest`: SHA-256 over the .py files of the package's folder, by their paths in order.
    """

    name: OutsideText
    distribution: OutsideText = ""
    version: OutsideText = ""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def described(self) -> str:
        """Say distribution, version and the beginning of the digest."""
        return f"{self.distribution or 'no distribution'} {self.version} (SHA-256 {self.digest[:12]})"


@lru_cache(maxsize=256)
def installed_code(name: str) -> InstalledCode | None:
    """Find the code that a name stands for here, importing nothing of it; None where it is not installed."""
    top = _modules.get(name, name).partition(":")[0].partition(".")[0]
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = tuple(map(Path, spec.submodule_search_locations or [spec.origin or ""]))
    owner = next(iter(packages_distributions().get(top, ())), "")
    version = distribution(owner).version if owner else ""
    return InstalledCode(name=name, distribution=owner, version=version, digest=source_digest(places))


@lru_cache(maxsize=256)
def source_digest(places: tuple[Path, ...]) -> str:
    """Return the SHA-256 over the .py files of folders, or of modules, by their paths in order."""
    found = {(path, place) for place in places for path in files_below([place]) if path.suffix == ".py"}
    known = hashlib.sha256()
    for shown, path in sorted((path.relative_to(place.parent).as_posix(), path) for path, place in found):
        content = path.read_bytes() if path.is_file() else b""
        known.update(f"{shown}\n{len(content)}\n".encode() + content)
    return known.hexdigest()


@lru_cache(maxsize=1)
def foundations() -> frozenset[str]:
    """Find the top-level modules of Python, of this package, and of all distributions that it needs, however far down.

    None of them is code that a scenario may name; pip counts with them.
    """
    needed: set[str] = set()
    asked = ["fl-dpbayes", "flwr", "opacus", "torchvision", "pip"]
    while asked:
        if (name := _normal(asked.pop())) not in needed:
            needed.add(name)
            try:
                asked += [each for each in requires(name) or () if "extra ==" not in each]
            except PackageNotFoundError:
                continue
    tops = {top for top, owners in packages_distributions().items() if needed & {_normal(owner) for owner in owners}}
    return frozenset({"fl_dpbayes", "clients", "server", *tops, *sys.stdlib_module_names})


def _normal(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def extended(namespace: dict[str, Any], name: str, group: str, base: type[Config]) -> Callable[[str], Any]:
    """Take a union of records out of a module, and give what makes the longer one when it is asked for.

    The records of a group of entry points join those of the union. They are loaded that late since a record's module
    imports that of its base. `namespace`: of the module, whose `__getattr__` the returned function is to be. Asking
    raises UserError if an entry point cannot be loaded, names no record of `base` with its code, or has a taken kind.
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
                why = f"{type(error).__name__}: {str(error)[:200]}; keep the record in a module of its own"
                raise UserError(f"{said} cannot be loaded: {why}, or uninstall the package") from None
            fits = isinstance(record, type) and issubclass(record, base)
            if not fits or not getattr(record, "implemented_by", ""):
                raise UserError(f"{said} is no subclass of {base.__name__} with implemented_by, the module of its code")
            kinds = kinds_of(record)
            # The private and the other form of a sampler are one algorithm.
            if both := {f"dp-{kind}" for kind in kinds} & taken | {kind.removeprefix("dp-") for kind in kinds} & taken:
                raise UserError(f"{said} takes the name {min(both)!r}, which is another's: give it a kind of its own")
            taken |= kinds
            _modules.update(dict.fromkeys(kinds, record.implemented_by))
            records.append(record)
        namespace[name] = Annotated[Union[tuple(records)], field]  # noqa: UP007
        return namespace[name]

    return get


def kinds_of(record: type[BaseModel]) -> set[str]:
    """Return the kinds, or rules, that a record may have."""
    fields = [record.model_fields[key] for key in ("kind", "rule") if key in record.model_fields]
    return {kind for field in fields for kind in get_args(field.annotation) if isinstance(kind, str)}
