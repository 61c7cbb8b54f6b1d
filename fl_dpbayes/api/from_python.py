"""A simulation from Python: records in memory, a model object, a scenario's parts as records."""

import shutil
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import pandas
from pydantic import BaseModel
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fl_dpbayes.api.finished_run import Run
from fl_dpbayes.api.frames import SiteRecords
from fl_dpbayes.api.keywords import check_keywords
from fl_dpbayes.commands.default_settings import DEFAULTS
from fl_dpbayes.commands.scenario_draft import (
    LEAST_UNITS,
    proposed_delta,
    toml_value,
)
from fl_dpbayes.config import (
    AnyPrivacyPlan,
    CNNModel,
    LogisticModel,
    MLPModel,
    Model,
    ModuleModel,
    NoPrivacyPlan,
    PrivacyPlan,
    Rule,
    SamplerSettings,
    Scenario,
    StridedCNNModel,
    apply_overrides,
    counted,
    first_names,
    near_hint,
    read_record,
    scenario_content,
    with_absolute_paths,
)
from fl_dpbayes.data import SitePlan, plan_sites
from fl_dpbayes.engine.simulate import check_machine, new_folder, run_planned
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.files.templates import templates
from fl_dpbayes.models import provided


@dataclass(frozen=True)
class Part:
    """A part of `simulate` that is a section of a scenario.

    Attributes:
        section: Name of the section.
        records: What the part may be.
        example: How to write one.
    """

    section: str
    records: tuple[type[BaseModel], ...]
    example: str


# In the order in which mistakes are named.
PARTS = {
    "sampler": Part("sampler", (SamplerSettings,), "fl.DPSGLD(step_size=0.3)"),
    "privacy": Part("privacy", (PrivacyPlan, NoPrivacyPlan), "fl.Privacy(epsilon=4.0, delta=1e-4)"),
    "rule": Part("aggregation", (Rule,), "fl.FALD()"),
    "model": Part(
        "model",
        (LogisticModel, MLPModel, CNNModel, StridedCNNModel, ModuleModel),
        "fl.MLP(hidden=[32]), or a torch module that was built",
    ),
}
# Keys of `privacy` whose meaning depends on how noise and step size are coupled.
COUPLED_KEYS = {"coupling", "temperature", "noise_multiplier"}


class Parts(TypedDict, total=False):
    """What `simulate` takes by name; see there."""

    model: Model | nn.Module
    sampler: SamplerSettings
    privacy: AnyPrivacyPlan
    rule: Rule
    held_out: Sequence[str]
    rounds: int
    out: Path | str
    engine: Literal["inline", "flower"]
    data_dir: Path | str
    quiet: bool


def simulate(
    data: SiteRecords | str | Path,
    settings: Mapping[str, Any] | None = None,
    **parts: Unpack[Parts],
) -> Run:
    """Run a simulated federation and return it, finished.

    What is not given is as `fl-dpbayes init` proposes it: DP-SGLD with constant noise at epsilon
    4, of which 50 samples and more are kept, and a fifth of the records of each site for testing.
    docs/samplers.md says how these settings were chosen. The run directory holds the records
    themselves (`records.parquet` or `records.npz`): it is as confidential as they.

    Args:
        data: The records of `sites_from_frame`, `sites_from_arrays` or `sites_from_datasets`; or
            the name of a scenario that comes with the package, or the path of one.
        settings: Key of a scenario -> value, such as `{"privacy.epsilon": 2}`.
        **parts: Any of these.

            - `model`: A record such as `MLP(hidden=[32])`, or a torch module (N, *shape) -> logits
              (N, classes).
            - `sampler`: Such as `DPSGLD(step_size=0.3)`.
            - `privacy`: `Privacy(epsilon=4, delta=1e-3)` or `NoPrivacy()`.
            - `rule`: How sites' samples become one posterior, such as `FALD()`.
            - `held_out`: Sites that do not train but test.
            - `rounds`: Number of rounds of messages, a sixth of them burn-in.
            - `out`: The run directory, empty or absent; by default `runs/<name>-<time>`.
            - `engine`: "inline" (default, this process) or "flower" (processes of their own, no
              module object).
            - `data_dir`: The folder of data sets.
            - `quiet`: Whether to show no progress.

    Returns:
        The finished run.

    Raises:
        UserError: If a part does not fit, or the run failed.

    Example:
        >>> run = simulate("digits", {"training.rounds": 2})  # doctest: +SKIP
    """
    _check_arguments(data, settings, parts)
    engine = parts.get("engine", "inline")
    model = parts.get("model")
    module = model if isinstance(model, nn.Module) else None
    out = parts.get("out")
    data_dir = parts.get("data_dir")
    console = Console(quiet=parts.get("quiet", False))
    with ExitStack() as stack:
        content = _scenario_content(data, parts)
        if module is not None:
            content["model"] = {"kind": "module", "factory": stack.enter_context(provided(module))}
        apply_overrides(content, _assignments(settings or {}))
        folder = new_folder(None if out is None else Path(out), content["name"])
        stack.enter_context(folder_lock(folder))
        try:
            scenario, plan = _prepare(
                data, content, folder, None if data_dir is None else Path(data_dir)
            )
        except BaseException:
            shutil.rmtree(folder)
            raise
        run_planned(scenario, plan, engine, folder, console)
    code = [scenario.model.factory] if isinstance(scenario.model, ModuleModel) else []
    return Run(folder, module, code)


def _check_arguments(data: object, settings: object, parts: Parts) -> None:
    check_keywords("simulate", parts, [*Parts.__annotations__, "settings"])
    if not isinstance(data, SiteRecords | str | Path):
        raise UserError(
            f"simulate has a {type(data).__name__}: give {_records_for(data)}, or a scenario's name"
        )
    if not isinstance(settings, Mapping | None):
        raise UserError(
            f"settings is a {type(settings).__name__}: give a dictionary, such as "
            '{"privacy.epsilon": 2}'
        )
    engine = parts.get("engine", "inline")
    if engine not in ("inline", "flower"):
        raise UserError(f"engine is {engine!r}: choose 'inline' or 'flower'")
    if isinstance(parts.get("model"), nn.Module) and engine == "flower":
        raise UserError(
            "model is an object, and engine 'flower' runs sites in other processes: use "
            "'inline', or name a factory of an installed package, "
            "ModuleModel(factory='package.module:function')"
        )


def _records_for(data: object) -> str:
    """Say how to make records of sites of what was given in their place."""
    if isinstance(data, pandas.DataFrame):
        return 'fl.sites_from_frame(frame, site="hospital", label="outcome")'
    if isinstance(data, Dataset | DataLoader | Mapping):
        return 'fl.sites_from_datasets({"north": ..., "south": ...}), a data set for each site'
    return "records of fl.sites_from_frame, fl.sites_from_arrays or fl.sites_from_datasets"


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as `--set` takes them; None removes a key."""
    return [
        f"{key}={'' if value is None else toml_value(value)}" for key, value in settings.items()
    ]


def _prepare(
    data: SiteRecords | str | Path, content: dict[str, Any], folder: Path, data_dir: Path | None
) -> tuple[Scenario, SitePlan]:
    """Write the records, if any, into the run's folder, and plan the sites."""
    if isinstance(data, SiteRecords):
        content["data"]["source"]["path"] = str(data.write(folder))
    scenario = with_absolute_paths(read_record(Scenario, content, "simulate"))
    check_machine(scenario.resources)
    return scenario, plan_sites(scenario, data_dir)


def _scenario_content(data: SiteRecords | str | Path, parts: Parts) -> dict[str, Any]:
    """Return a scenario's content with the given parts, before it is validated."""
    content = (
        _content_of_records(data) if isinstance(data, SiteRecords) else scenario_content(str(data))
    )
    _set_sections(content, parts)
    _set_rounds(content["training"], parts.get("rounds"))
    held_out = parts.get("held_out", ())
    names = data.names if isinstance(data, SiteRecords) else {}
    _set_held_out(content, [held_out] if isinstance(held_out, str) else held_out, names)
    if isinstance(data, SiteRecords):
        _check_sizes(content, data)
    return content


def _content_of_records(data: SiteRecords) -> dict[str, Any]:
    left_empty = dict.fromkeys(("file", "data", "source", "sites", "unit"), "")
    text = templates("init")["scenario.toml"].format(
        **left_empty,
        name='"own"',
        description='""',
        path='""',
        delta=proposed_delta(max(data.sizes.values())),
        **DEFAULTS.written(DEFAULTS.clip_norm(prod(data.source.task.input_shape))),
    )
    content = tomllib.loads(text)
    # Without the section, the rule that fits the sampler is taken.
    del content["aggregation"]
    content["data"]["source"] = data.source.model_dump(mode="json", exclude_none=True)
    content["sites"] = {name: {"role": "train"} for name in data.sizes}
    return content


def _set_sections(content: dict[str, Any], parts: Parts) -> None:
    sampler = parts.get("sampler")
    has_temperature = not isinstance(sampler, SamplerSettings) or sampler.has_temperature
    for name, part in PARTS.items():
        record: Any = parts.get(name)
        if record is None or (name == "model" and isinstance(record, nn.Module)):
            continue
        if not isinstance(record, part.records):
            raise UserError(_wrong_part(name, part, record))
        keys = record.model_dump(mode="json", include=record.model_fields_set | {"kind", "rule"})
        before = content.get(part.section, {})
        kept_keys = _kept_keys(name, record, before)
        if not has_temperature or "coupling" in keys:
            kept_keys -= COUPLED_KEYS
        content[part.section] = {key: before[key] for key in kept_keys & before.keys()} | keys
    if isinstance(parts.get("privacy"), NoPrivacyPlan):
        content["sampler"]["kind"] = content["sampler"]["kind"].removeprefix("dp-")


def _wrong_part(name: str, part: Part, given: object) -> str:
    if name == "privacy" and isinstance(given, int | float):
        return (
            f"privacy is {given}: write privacy=fl.Privacy(epsilon={given}, delta=...), delta "
            "below 1 / n for n patients of the largest site"
        )
    return f"{name} is {str(given)[:60]!r}: write {name}={part.example}"


def _kept_keys(part: str, record: BaseModel, before: Mapping[str, Any]) -> set[str]:
    """Return which keys of a section stay beside those of a record that is given."""
    if part == "sampler":
        return {"step_size", "prior"}
    if part == "privacy":
        is_private = not isinstance(record, NoPrivacyPlan)
        return set(before) if is_private else {"sampling_rate", "temperature"}
    return set()


def _set_rounds(training: dict[str, Any], rounds: int | None) -> None:
    if rounds is None:
        return
    training["rounds"] = rounds
    # What is no whole number is refused when the scenario is validated.
    if isinstance(rounds, int):
        training |= DEFAULTS.kept(rounds, training["steps_per_round"])


def _set_held_out(
    content: dict[str, Any], held_out: Sequence[str], names: Mapping[str, str]
) -> None:
    sites = content["sites"]
    for name in held_out:
        site = names.get(str(name), str(name))
        if site not in sites:
            raise UserError(
                f"held_out names {name!r}: {near_hint(site, sites)}choose among the sites "
                f"{first_names(list(sites))}"
            )
        sites[site]["role"] = "held_out"


def _check_sizes(content: dict[str, Any], data: SiteRecords) -> None:
    for name, spec in content["sites"].items():
        if spec["role"] == "train" and data.sizes[name] < LEAST_UNITS:
            raise UserError(
                f"site {name!r} has {counted(data.sizes[name], data.source.unit)}, to train it "
                f"needs {LEAST_UNITS}: name it in held_out, join small sites, or leave out its "
                "rows"
            )
