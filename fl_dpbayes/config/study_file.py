"""A study file: a scenario plus axes along which it is varied.

A paper's also holds what the paper printed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import tomli_w
from pydantic import Field, ValidationError

from fl_dpbayes.config import scenario as scenarios
from fl_dpbayes.config.names import PREDICTORS, SiteName, near_hint
from fl_dpbayes.config.validation_text import SWITCHES, explain, read_toml
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config, write_atomically

PREDICTOR = "predictor"
SEED = "seed"
SHIFT_KIND = "shift.kind"
SHIFT_SEVERITY = "shift.severity"
SHIFT_AXES = (SHIFT_KIND, SHIFT_SEVERITY)
LABEL = "label"
# Columns of the study's tables, and sections of a scenario, which a column of the same name would
# hide.
RESERVED = {
    "cell",
    "seed",
    "site",
    "role",
    "shift",
    "severity",
    "predictor",
    "n",
    "epsilon",
    "heterogeneity",
    "compared",
    "method",
    "baseline",
    "metric",
    "over",
    "mean",
    "low",
    "high",
    "pairs",
    "column",
    "paper",
    "measured",
}
PAPERS = "papers"
MAX_VALUES = 1000
MAX_LABEL = 300
# What a spreadsheet takes for the beginning of a formula.
FORMULA = ("=", "+", "-", "@")

Key = tuple[str, ...]
Section = TypeVar("Section", bound=Config)


class StudySection(Config):
    """What a study asks.

    Whether a metric is one is told when its cells are made. Axes over shifts give every run
    further sites.

    Attributes:
        question: The question, in words.
        compare: Axes (or `predictor`) whose values are methods, the first of them the baseline.
        order: All axes in the order of the tables; default: as they stand in the file.
        metrics: The metrics that are compared; the first is printed.
        where: Where it is printed: a site, `pooled:<role>` or `mean:<role>`.
        shifted_copy_of: The site whose records the sites of shift axes hold.
        focus: Axis -> one of its values, to which the report's answer keeps.
        baseline: Axis (or `predictor`) -> one of its values. The answer holds every combination
            of the values of these axes against this one.
        separate: Axes at each value of which that is done by itself.
    """

    question: Annotated[str, Field(max_length=500)] = ""
    compare: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    metrics: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "rms_debiased",
        "ece",
        "nll",
        "accuracy",
    )
    where: Annotated[str, Field(min_length=1, max_length=80)] = "pooled:held_out"
    shifted_copy_of: SiteName | None = None
    focus: dict[str, str | int | float] = Field(default_factory=dict)
    baseline: dict[str, str | int | float] = Field(default_factory=dict)
    separate: tuple[str, ...] = ()


class PaperSection(Config):
    """Where a paper prints what its study measures.

    Attributes:
        source: The paper, and its table or figure.
        notes: What differs from the paper.
        full: What is laid over the file for the paper's own size.
        values: Rows of labels and of the printed values there. Labels are those of axes (one that
            is left out is averaged over), `predictor` (default: `posterior`) and `site` (default:
            the study's `where`); every other key is a metric or `epsilon`.
    """

    source: Annotated[str, Field(max_length=300)]
    notes: tuple[str, ...] = ()
    full: dict[str, Any] = Field(default_factory=dict)
    values: tuple[dict[str, Any], ...] = ()


class Published(NamedTuple):
    """One value that a paper prints.

    Attributes:
        labels: Axis, `predictor` or `site` -> label.
        column: The metric, or `epsilon`.
        value: The value.
    """

    labels: Mapping[str, Any]
    column: str
    value: float


class AxisValue(NamedTuple):
    """One value of an axis.

    Attributes:
        label: What tables call it.
        settings: Key of the scenario -> the value that it sets; an empty table removes the key.
    """

    label: Any
    settings: Mapping[Key, Any]


class Axis(NamedTuple):
    """A direction of the grid."""

    name: str
    values: tuple[AxisValue, ...]


@dataclass(frozen=True)
class Study:
    """A study: what it asks, the scenario that it varies, and along what.

    Attributes:
        name: Name of the study, and of the folder of its results.
        section: What it asks.
        scenario: The scenario that it varies, as parsed.
        axes: Axes that make runs.
        shift_axes: Axes that make shifted sites within every run.
        order: Names of all axes, in the order of the tables.
        content: The whole file, as parsed.
        paper: What it says of a paper; None for a study of our own.
        published: The values of the paper.
    """

    name: str
    section: StudySection
    scenario: Mapping[str, Any]
    axes: tuple[Axis, ...]
    shift_axes: tuple[Axis, ...]
    order: tuple[str, ...]
    content: Mapping[str, Any]
    paper: PaperSection | None = None
    published: tuple[Published, ...] = ()


def shipped_studies() -> list[str]:
    """Return the names of the package's studies, in alphabetical order, without the papers'."""
    files = scenarios.scenario_folder().glob(f"{scenarios.STUDY_PREFIX}*.toml")
    return sorted(path.stem for path in files)


def shipped_papers() -> list[str]:
    """Return the names of the papers' tables that come with the package, in alphabetical order."""
    return sorted(path.stem for path in (scenarios.scenario_folder() / PAPERS).glob("*.toml"))


def load_study(name_or_path: str, overrides: Sequence[str] = (), *, full: bool = False) -> Study:
    """Read a study; its cells are not validated yet.

    Args:
        name_or_path: A shipped name, with or without `study-`, a paper's table, or the path of a
            TOML file.
        overrides: Assignments `key.sub_key=value`, as for a scenario; `axes.seed=[1,2]` replaces
            an axis.
        full: Whether `paper.full` is laid over the file first.

    Raises:
        UserError: The study is absent or wrong.
    """
    path = _find(name_or_path)
    content = scenarios.place_paths(read_toml(path, "study"), path.parent)
    content.setdefault("name", path.stem)
    base_scenario = content.pop("scenario", None)
    if isinstance(base_scenario, str):
        content = scenarios.scenario_content(base_scenario) | content
    if full:
        _lay_over(content, (content.get("paper") or {}).get("full") or {})
    scenarios.apply_overrides(content, overrides)
    return study_of(scenarios.place_paths(content, Path()), f"study {name_or_path!r}")


def study_of(content: Mapping[str, Any], origin: str) -> Study:
    """Validate the content of a study file.

    Args:
        content: The parsed file.
        origin: What an error calls the file.

    Raises:
        UserError: The content is wrong; the error names in one line the key, its value and what
            is allowed.
    """
    try:
        return _study_of(content)
    except ValueError as error:
        raise UserError(f"{origin}: {error}") from None


def _study_of(content: Mapping[str, Any]) -> Study:
    study_name = content.get("name", "study")
    # It names the folder of the results, and the cells' scenarios may have names of their own.
    if not isinstance(study_name, str) or not re.fullmatch(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", study_name
    ):
        raise ValueError(
            f"name is {study_name!r}: choose up to 64 letters, digits and . _ -, a letter "
            "or digit first"
        )
    section = _validated(StudySection, "study", content.get("study", {}))
    paper = _validated(PaperSection, "paper", content["paper"]) if "paper" in content else None
    axes = [*_listed_axes(content.get("axes", {})), *_variant_axes(content.get("variants", {}))]
    if not axes:
        raise ValueError("it has no axes: add a table such as  [axes] seed = [1, 2, 3]")
    for axis in axes:
        _check_labels(axis)
    names = [axis.name for axis in axes]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"two axes are called {twice[0]!r}: rename the one in [variants]")
    order = section.order or names
    if sorted(order) != sorted(names):
        raise ValueError(f"study.order is {list(order)}: list each axis once: {', '.join(names)}")
    axes.sort(key=lambda axis: order.index(axis.name))
    making_runs = tuple(axis for axis in axes if axis.name not in SHIFT_AXES)
    shift_axes = _shift_axes(axes, section)
    labels = {axis.name: [value.label for value in axis.values] for axis in making_runs}
    _check_names(section, labels)
    scenario = {key: value for key, value in content.items() if key not in scenarios.STUDY_TABLES}
    published: tuple[Published, ...] = ()
    if paper is not None:
        labels_of_values = {**labels, PREDICTOR: list(PREDICTORS)}
        published = _published(paper, labels_by_axis=labels_of_values, where=section.where)
    return Study(
        name=study_name,
        section=section,
        scenario=scenario,
        axes=making_runs,
        shift_axes=shift_axes,
        order=tuple(order),
        content=content,
        paper=paper,
        published=published,
    )


def _shift_axes(axes: Sequence[Axis], section: StudySection) -> tuple[Axis, ...]:
    """Return the axes over shifts, the kind first; refuse a severity without a kind or site."""
    axes_by_name = {axis.name: axis for axis in axes}
    shift_axes = tuple(axes_by_name[name] for name in SHIFT_AXES if name in axes_by_name)
    if not shift_axes:
        return ()
    if SHIFT_KIND not in axes_by_name:
        raise ValueError(
            f'axes.{SHIFT_SEVERITY} needs axes.{SHIFT_KIND} beside it, such as  ["contrast"]'
        )
    if section.shifted_copy_of is None:
        raise ValueError(
            "study.shifted_copy_of is missing: name the held-out site whose records "
            f"{SHIFT_KIND} shifts"
        )
    return shift_axes


def write_study(study: Study, path: Path) -> None:
    """Write the resolved study as TOML; whoever reads it meets the whole file or none."""
    # TOML puts tables after plain values, which would change the order of the axes.
    section = {**study.content.get("study", {}), "order": study.order}
    write_atomically(path, tomli_w.dumps({**study.content, "study": section}))


def same_study(first: Study, second: Study) -> bool:
    """Return whether two studies ask the same of the same runs, whatever their files are called."""
    first_section = first.section.model_copy(update={"order": first.order})
    second_section = second.section.model_copy(update={"order": second.order})
    if first_section != second_section:
        return False
    no_names: dict[str, Any] = {"name": "", "study": {}}
    return {**first.content, **no_names} == {**second.content, **no_names}


def _validated(section: type[Section], key: str, table: Any) -> Section:
    try:
        return section.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{key}: {explain(error, section)}") from None


def _published(
    paper: PaperSection, *, labels_by_axis: Mapping[str, Sequence[Any]], where: str
) -> tuple[Published, ...]:
    """Part each row of `paper.values` into labels of the axes and values of the columns."""
    published = []
    for row in paper.values:
        items = {".".join(key): value for key, value in _leaves(row)}
        labels = {name: value for name, value in items.items() if name in labels_by_axis}
        _check_values("paper.values", labels, labels_by_axis)
        place = {"site": items.pop("site", where), PREDICTOR: labels.get(PREDICTOR, "posterior")}
        for column, value in items.items():
            if column in labels:
                continue
            if not isinstance(value, int | float):
                raise ValueError(
                    f"paper.values has {column} = {value!r}: it must be an axis "
                    f"({', '.join(labels_by_axis)}), site, or a metric with its number"
                )
            published.append(Published(labels=labels | place, column=column, value=float(value)))
    return tuple(published)


def _lay_over(content: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(content.get(key), dict):
            _lay_over(content[key], value)
        else:
            content[key] = value


def _listed_axes(table: Any) -> Iterator[Axis]:
    if not isinstance(table, Mapping):
        raise ValueError(
            f"axes is {table!r}: it must be a table of lists, such as  [axes] seed = [1, 2, 3]"
        )
    for key, values in _leaves(table):
        name = ".".join(key)
        if not isinstance(values, list) or not values:
            remedy = (
                "it must be a list of at least one value; a single value belongs into the "
                "scenario itself"
            )
            raise ValueError(f"axes.{name} is {values!r}: {remedy}")
        if len(values) > MAX_VALUES:
            raise ValueError(f"axes.{name} has {len(values)} values: at most {MAX_VALUES}")
        yield Axis(name, _distinct(name, [_axis_value(key, value) for value in values]))


def _check_labels(axis: Axis) -> None:
    """Refuse texts that would steer a terminal, or that a spreadsheet would run."""
    texts = [value.label for value in axis.values if isinstance(value.label, str)]
    for label in texts:
        if len(label) > MAX_LABEL or not label.isprintable() or label.startswith(FORMULA):
            allowed = (
                f"up to {MAX_LABEL} printable characters, of which the first is none of "
                f"{' '.join(FORMULA)}"
            )
            raise ValueError(
                f"the axis {axis.name} has the label {label[:60]!r}: tables hold {allowed}"
            )


def _leaves(table: Mapping[str, Any], above: Key = ()) -> list[tuple[Key, Any]]:
    """Return the values of a table and of its tables, each with its whole key."""
    leaves: list[tuple[Key, Any]] = []
    for name, value in table.items():
        key = (*above, *(part.strip() for part in name.split(".")))
        if isinstance(value, Mapping) and value:
            leaves += _leaves(value, key)
        else:
            leaves.append((key, value))
    return leaves


def _axis_value(key: Key, value: Any) -> AxisValue:
    if isinstance(value, Mapping):
        content = {name: item for name, item in value.items() if name != LABEL}
        return AxisValue(_table_label(value, content), {key: content})
    label = json.dumps(value) if isinstance(value, list) else value
    return AxisValue(label, {key: value})


def _table_label(table: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return a table's label, its kind, or else what it holds."""
    for name in (LABEL, *SWITCHES):
        label = table.get(name)
        if isinstance(label, str):
            return label
    return str(content) if content else "none"


def _distinct(axis: str, values: Sequence[AxisValue]) -> tuple[AxisValue, ...]:
    """Number tables of the same label; refuse values that are given twice."""
    numbered: list[AxisValue] = []
    for value in values:
        if any(value.settings == earlier.settings for earlier in numbered):
            raise ValueError(f"axes.{axis} holds {value.label!r} twice: remove one")
        labels = {str(earlier.label) for earlier in numbered}
        label = value.label
        number = 2
        while str(label) in labels:
            label = f"{value.label} ({number})"
            number += 1
        numbered.append(AxisValue(label, value.settings))
    return tuple(numbered)


def _variant_axes(table: Any) -> Iterator[Axis]:
    if not isinstance(table, Mapping):
        raise ValueError(f"variants is {table!r}: it must hold a table per axis")
    for name, variants in table.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or name in RESERVED:
            raise ValueError(
                f"variants.{name}: choose a name of a-z, 0-9 and _, none of "
                f"{', '.join(sorted(RESERVED))}"
            )
        if not isinstance(variants, Mapping) or not variants:
            raise ValueError(
                f"variants.{name} is {variants!r}: it must hold a table of overrides per label"
            )
        for label, settings in variants.items():
            if not isinstance(settings, Mapping):
                remedy = 'it must be a table of overrides, such as { "partition.alpha" = 0.1 }'
                raise ValueError(f"variants.{name}.{label} is {settings!r}: {remedy}")
        values = [AxisValue(label, dict(_leaves(settings))) for label, settings in variants.items()]
        yield Axis(name, tuple(values))


def _check_names(section: StudySection, labels: Mapping[str, Sequence[Any]]) -> None:
    """Check that a section names axes, and values of theirs, among `labels`."""
    allowed = [*(name for name in labels if name != SEED), PREDICTOR]
    for name in section.compare:
        if name not in allowed:
            raise ValueError(f"study.compare names {name!r}: choose among {', '.join(allowed)}")
    _check_values("study.focus", section.focus, labels)
    _check_values("study.baseline", section.baseline, {**labels, PREDICTOR: list(PREDICTORS)})
    separable: list[str] = []
    if section.baseline:
        separable = [name for name in labels if name != SEED and name not in section.baseline]
    for name in section.separate:
        if name not in separable:
            choice = "it needs study.baseline beside it"
            if separable:
                choice = f"choose among {', '.join(separable)}"
            raise ValueError(f"study.separate names {name!r}: {choice}")


def _check_values(
    key: str, chosen: Mapping[str, Any], labels_by_axis: Mapping[str, Sequence[Any]]
) -> None:
    for name, label in chosen.items():
        if label not in labels_by_axis.get(name, []):
            choice = f"an axis among {', '.join(labels_by_axis)}"
            if name in labels_by_axis:
                choice = ", ".join(map(str, labels_by_axis[name]))
            raise ValueError(f"{key} has {name} = {label!r}: choose {choice}")


def _find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    folder = scenarios.scenario_folder()
    if path.suffix == ".toml":
        return path
    if name_or_path in shipped_papers():
        return folder / PAPERS / f"{name_or_path}.toml"
    name = f"{scenarios.STUDY_PREFIX}{name_or_path.removeprefix(scenarios.STUDY_PREFIX)}"
    if name not in shipped_studies():
        names = [*shipped_studies(), *shipped_papers()]
        raise UserError(
            f"no study {name_or_path!r}: {near_hint(name_or_path, names)}choose one of "
            f"{', '.join(names)}, or give the path of a .toml file"
        )
    return folder / f"{name}.toml"
