"""Records that a file chooses among by their kind, and that other packages add to.

A registry is a dictionary from kind to record. Every file that is read goes through it, so what is
registered is known everywhere.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args

from pydantic import BaseModel, Field, GetCoreSchemaHandler, TypeAdapter, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config

SAMPLER_GROUP = "fl_dpbayes.samplers"
RULE_GROUP = "fl_dpbayes.rules"
SOURCE_GROUP = "fl_dpbayes.sources"
# Without its first dp- a sampler is the one that is not private.
_KIND = re.compile(r"(?!dp-dp-)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Choice(Config):
    """A record that a file chooses by its kind.

    Attributes:
        implemented_by: The module of its code, in a package that registers the record; empty: the
            module of its kind's name in this package.
    """

    implemented_by: ClassVar[str] = ""


Record = TypeVar("Record", bound=type[Choice])


class Registry:
    """The records of one section, by kind.

    It annotates the section's field: a table is read by the record that its kind names.

    Attributes:
        records: Kind -> record, in the order in which they were registered.
    """

    def __init__(self, base: type[Choice], group: str, switch: str = "kind") -> None:
        """Make an empty registry.

        Args:
            base: Class of every record.
            group: Group of the entry points by which installed packages register records.
            switch: The key that chooses a record.
        """
        self.records: dict[str, type[Choice]] = {}
        self._base = base
        self._group = group
        self._switch = switch
        self._is_loaded = False

    def register(self, record: Record) -> Record:
        """Add a record under each of its kinds, and return it.

        Args:
            record: A subclass of the section's base; one outside this package names in
                `implemented_by` the module of its code.

        Raises:
            UserError: It is no such class, has no kind that can be written, or another record has
                one of its kinds.
        """
        is_record = isinstance(record, type) and issubclass(record, self._base)
        if not is_record or not (
            record.implemented_by or record.__module__.startswith("fl_dpbayes.")
        ):
            raise UserError(
                f"{record!r} is no subclass of {self._base.__name__} with implemented_by, the "
                "module of its code"
            )
        kinds = kinds_of(record)
        if not kinds or not all(map(_KIND.fullmatch, kinds)):
            raise UserError(
                f"{record.__name__} has the kinds {', '.join(map(repr, kinds)) or 'none'}: give "
                f'it  {self._switch}: Literal["name"], of letters, digits, ".", "_" and "-", not '
                "with dp- twice"
            )
        # The private and the other form of a sampler are one algorithm.
        taken = {
            kind.removeprefix("dp-") for kind, other in self.records.items() if other is not record
        }
        for kind in kinds:
            if kind.removeprefix("dp-") in taken:
                raise UserError(
                    f"{record.__name__} takes the name {kind!r}, which is another's: give it a "
                    "kind of its own"
                )
        # Another thread may be reading the dictionary.
        self.records = self.records | dict.fromkeys(kinds, record)
        return record

    def loaded(self) -> dict[str, type[Choice]]:
        """Return the records, with those of installed packages.

        Raises:
            UserError: A record of an installed package cannot be loaded or registered.
        """
        if not self._is_loaded:
            points = entry_points(group=self._group)
            for point in sorted(points, key=lambda point: (point.name, point.value)):
                _register_point(point, self.register)
            self._is_loaded = True
        return self.records

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        # What is registered later is read too; only a schema's reader does not see it.
        schema = handler.generate_schema(_choice(self._distinct(), self._switch))
        return core_schema.with_info_plain_validator_function(
            self._read, json_schema_input_schema=schema
        )

    def _read(self, value: Any, info: ValidationInfo) -> Choice:
        self.loaded()
        reader = _reader(self._distinct(), self._switch)
        return reader.validate_python(value, context=info.context)

    def _distinct(self) -> tuple[type[Choice], ...]:
        return tuple(dict.fromkeys(self.records.values()))


def kinds_of(record: type[BaseModel]) -> tuple[str, ...]:
    """Return the kinds, or rules, that a record may have."""
    fields = [record.model_fields[key] for key in ("kind", "rule") if key in record.model_fields]
    return tuple(
        kind for field in fields for kind in get_args(field.annotation) if isinstance(kind, str)
    )


@lru_cache(maxsize=1)
def registered_modules() -> tuple[str, ...]:
    """Return the modules of other packages that are imported for the records they register."""
    groups = (SAMPLER_GROUP, RULE_GROUP, SOURCE_GROUP)
    points = [point for group in groups for point in entry_points(group=group)]
    return tuple(sorted({point.module for point in points}))


def _choice(records: tuple[type[Choice], ...], switch: str) -> Any:
    union: Any = Union[records]  # noqa: UP007
    return Annotated[union, Field(discriminator=switch)]


@lru_cache
def _reader(records: tuple[type[Choice], ...], switch: str) -> TypeAdapter[Choice]:
    return TypeAdapter(_choice(records, switch))


def _register_point(point: EntryPoint, register: Callable[[Any], object]) -> None:
    """Register the record that an entry point names; an error names the entry point."""
    origin = f"entry point {point.name!r} of {point.group} ({point.value})"
    try:
        record = point.load()
    except Exception as error:
        problem = (
            f"{type(error).__name__}: {str(error)[:200]}; keep the record in a module of its own"
        )
        raise UserError(f"{origin} cannot be loaded: {problem}, or uninstall the package") from None
    try:
        register(record)
    except UserError as error:
        raise UserError(f"{origin}: {error}") from None
