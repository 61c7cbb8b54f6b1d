"""A simulation from Python: records in memory, a model object, and every part of a scenario as a record."""

import shutil
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from pydantic import BaseModel
from rich.console import Console
from torch import nn

from fl_dpbayes.api.finished_run import Run
from fl_dpbayes.api.frames import SiteRecords
from fl_dpbayes.commands.init_scenario import (
    LEAST_UNITS,
    proposed_clip_norm,
    proposed_delta,
    toml_value,
)
from fl_dpbayes.config import (
    AnyPrivacyPlan,
    Model,
    ModuleModel,
    NoPrivacyPlan,
    Rule,
    SamplerSettings,
    Scenario,
    apply_overrides,
    counted,
    read_record,
    scenario_content,
    with_absolute_paths,
)
from fl_dpbayes.data import plan_sites
from fl_dpbayes.engine.simulate import check_machine, new_folder, run_planned
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.files.templates import templates
from fl_dpbayes.models import provided

COUPLED = {"coupling", "temperature", "noise_multiplier"}


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

    What is not given is as `fl-dpbayes init` proposes it: 10 rounds of 20 steps of DP-SGLD, of
    which every tenth after the first half is kept, at epsilon 4, a sampling rate of 0.5, and a
    fifth of the records of each site for testing. The run directory holds the records themselves
    (`records.parquet` or `records.npz`): it is as confidential as they.

    `data`: the records of `sites_from_frame` or `sites_from_arrays`; or the name of a scenario that
    comes with the package, or the path of one. `settings`: key of a scenario -> value, such as
    `{"privacy.epsilon": 2}`. `model`: a record such as `MLP(hidden=[32])`, or a torch module (N,
    *shape) -> logits (N, classes). `sampler`: such as `DPSGLD(step_size=0.3)`. `privacy`:
    `Privacy(epsilon=4, delta=1e-3)` or `NoPrivacy()`. `rule`: how sites' samples become one
    posterior, such as `FALD()`. `held_out`: sites that do not train but test. `rounds`: of
    messages, half of them burn-in. `out`: the run directory, empty or absent (default:
    `runs/<name>-<time>`). `engine`: "inline" (default, this process) or "flower" (processes of
    their own, no module object). `data_dir`: the folder of data sets. `quiet`: whether to show no
    progress. Raises UserError if a part does not fit, or the run failed.

    Example:
        >>> run = simulate("digits", {"training.rounds": 2, "training.burn_in": 0})  # doctest: +SKIP
    """
    if unknown := parts.keys() - Parts.__annotations__.keys():
        raise UserError(
            f"simulate takes no {min(unknown)!r}: it takes {', '.join(Parts.__annotations__)}"
        )
    if not isinstance(data, SiteRecords | str | Path) or not isinstance(settings, Mapping | None):
        given = f"simulate has a {type(data).__name__} and a {type(settings).__name__}"
        raise UserError(
            f"{given}: give records of sites_from_frame, or a scenario's name, and a dictionary"
        )
    engine, model = parts.get("engine", "inline"), parts.get("model")
    if engine not in ("inline", "flower"):
        raise UserError(f"engine is {engine!r}: choose 'inline' or 'flower'")
    if isinstance(model, nn.Module) and engine == "flower":
        factory = (
            "name a factory of an installed package, ModuleModel(factory='package.module:function')"
        )
        said = "model is an object, and engine 'flower' runs sites in other processes"
        raise UserError(f"{said}: use 'inline', or {factory}")
    with ExitStack() as stack:
        content = _content(data, parts)
        if isinstance(model, nn.Module):
            content["model"] = {"kind": "module", "factory": stack.enter_context(provided(model))}
        apply_overrides(
            content,
            [
                f"{key}={'' if value is None else toml_value(value)}"
                for key, value in (settings or {}).items()
            ],
        )
        out, data_dir = parts.get("out"), parts.get("data_dir")
        folder = new_folder(None if out is None else Path(out), content["name"])
        stack.enter_context(folder_lock(folder))
        try:
            if isinstance(data, SiteRecords):
                content["data"]["source"]["path"] = str(data.write(folder))
            scenario = with_absolute_paths(read_record(Scenario, content, "simulate"))
            check_machine(scenario.resources)
            plan = plan_sites(scenario, None if data_dir is None else Path(data_dir))
        except BaseException:
            shutil.rmtree(folder)
            raise
        run_planned(scenario, plan, engine, folder, Console(quiet=parts.get("quiet", False)))
    named = [scenario.model.factory] if isinstance(scenario.model, ModuleModel) else []
    return Run(folder, model if isinstance(model, nn.Module) else None, named)


def _content(data: SiteRecords | str | Path, parts: Parts) -> dict[str, Any]:
    content = _of_records(data) if isinstance(data, SiteRecords) else scenario_content(str(data))
    has_temperature = getattr(parts.get("sampler"), "has_temperature", True)
    for key, section in (
        ("sampler", "sampler"),
        ("privacy", "privacy"),
        ("rule", "aggregation"),
        ("model", "model"),
    ):
        given: Any = parts.get(key)
        if given is None or (key == "model" and isinstance(given, nn.Module)):
            continue
        if not isinstance(given, BaseModel):
            raise UserError(
                f"{key} is {str(given)[:60]!r}: give an object such as "
                "fl.DPSGLD(step_size=0.3), fl.FALD()"
            )
        before, switch = content.get(section, {}), "rule" if key == "rule" else "kind"
        own = given.model_dump(mode="json", exclude_unset=True) | {switch: getattr(given, switch)}
        if own.get("temperature") == 1.0 and not has_temperature:
            del own["temperature"]  # the default of Privacy
        kept = {"sampler": {"step_size", "prior"}, "privacy": set(before)}.get(key, set())
        kept &= {"sampling_rate", "temperature"} if isinstance(given, NoPrivacyPlan) else kept
        kept -= COUPLED if not has_temperature or "coupling" in own else set()
        content[section] = {name: before[name] for name in kept & before.keys()} | own
    if content["privacy"].get("kind") == "none":
        content["sampler"]["kind"] = content["sampler"]["kind"].removeprefix("dp-")
    training, rounds = content["training"], parts.get("rounds")
    training |= {} if rounds is None else {"rounds": rounds}  # validated below
    if isinstance(rounds, int):
        steps = rounds * training["steps_per_round"]
        training |= {
            "burn_in": steps // 2,
            "thinning": max(1, min(training["thinning"], steps // 4)),
        }
    held_out = parts.get("held_out", ())
    for name in [held_out] if isinstance(held_out, str) else held_out:
        known = data.names.get(str(name), str(name)) if isinstance(data, SiteRecords) else str(name)
        if known not in content["sites"]:
            raise UserError(
                f"held_out names {name!r}: choose among the sites {', '.join(content['sites'])}"
            )
        content["sites"][known]["role"] = "held_out"
    for name, spec in content["sites"].items():
        if (
            isinstance(data, SiteRecords)
            and spec["role"] == "train"
            and data.sizes[name] < LEAST_UNITS
        ):
            said = (
                f"site {name!r} has {counted(data.sizes[name], data.source.unit)}, to train it "
                f"needs {LEAST_UNITS}"
            )
            raise UserError(f"{said}: name it in held_out, join small sites, or leave out its rows")
    return content


def _of_records(data: SiteRecords) -> dict[str, Any]:
    keys = dict.fromkeys(("file", "source", "sites", "unit"), "")
    content = tomllib.loads(
        templates("init")["scenario.toml"].format(
            **keys,
            name='"own"',
            description='""',
            path='""',
            delta=proposed_delta(max(data.sizes.values())),
            clip_norm=proposed_clip_norm(prod(data.source.task.input_shape)),
        )
    )
    del content["aggregation"]  # by default the rule that fits the sampler
    content["data"]["source"] = data.source.model_dump(mode="json", exclude_none=True)
    content["sites"] = {name: {"role": "train"} for name in data.sizes}
    return content
