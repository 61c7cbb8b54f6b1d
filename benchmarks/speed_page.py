"""Writes the table of docs/speed.md and its figure from docs/results/speed/*.json.

Run `python -m benchmarks.speed_page`.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure

from fl_dpbayes.report import figure_style as look

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "speed"
# Files of the same benchmark under emulation of another maker's processor.
OTHER = "-another-maker"
NOTHING: Mapping[str, Any] = {"rows": {}}
OPACUS = ("ghost", "hooks", "functorch")
# Two runs of a row differ by 4 %: a smaller lead is none.
LEVEL = 0.96
SITES = "a site's round beyond its chain, CPU ms"
METHODS = {
    "ours": (look.BLUE, "o"),
    "ghost": (look.VERMILLION, "s"),
    "hooks": (look.GREEN, "^"),
    "functorch": (look.PURPLE, "v"),
    "func.vmap": (look.ORANGE, "D"),
}
MEASURED = (
    "test accuracy",
    "test ece",
    "averaged accuracy",
    "averaged ece",
    "epsilon",
    "CPU s",
    "wall s",
    "median round, CPU s",
    "median round, s",
)


def reference() -> str:
    """Return the page with its tables made anew."""
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }
    text = PAGE.read_text(encoding="utf-8")
    blocks = {
        "answer": answer(results),
        "rows": targets(results),
        "widths": widths(results),
        "batches": batches(results),
        "gpu": on_a_gpu(results),
        "end-to-end": end_to_end(results),
        "machine": machines(results),
    }
    for name, lines in blocks.items():
        table = f"<!-- {name} -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->"
        before, _, rest = text.partition(f"<!-- {name} -->")
        _, _, after = rest.partition("<!-- end -->")
        text = before + table + after
    return text


def answer(results: Mapping[str, Any]) -> Iterator[str]:
    """Return the first words: what a private step and a federation cost."""
    table = list(targets(results))[2:]
    reached = sum("| **" in row for row in table)
    ratios = [record["ours"] for name, record in results["clip"]["rows"].items() if name in goals()]
    fallback = results["clip"]["rows"]["fallback: weights called"]["ours"]
    ours, peer = (
        {key: _mean(results["end-to-end"]["rows"], name, key) for key in ("CPU s", "test accuracy")}
        for name in ("ours", "Opacus and FedAvg")
    )
    yield (
        f"**A private step of {len(ratios)} models costs {min(ratios):.1f} to "
        f"{max(ratios):.1f} times a plain one, "
        f"noise, padding and checks included, and {fallback:.1f} times where gradients must be "
        "formed one by one. "
        f"Federated MNIST at equal epsilon takes {ours['CPU s']:.1f} CPU seconds, start to report, "
        f"where the same with Opacus and Flower's FedAvg takes {peer['CPU s']:.1f}, "
        f"at accuracy {ours['test accuracy']:.3f} and {peer['test accuracy']:.3f}. "
        f"Of {len(table)} figures that were to be reached {reached} are. "
        f"{against_opacus(results)}Processor: Intel.**"
    )


def against_opacus(results: Mapping[str, Any]) -> str:
    """Count the sizes where a step is ahead of Opacus' fastest mode, and name those behind."""
    measured = results.get("sizes", NOTHING)["rows"]
    ratios = {
        name: beside_opacus(record) for name, record in measured.items() if ", batch " in name
    }
    # No mode of Opacus takes some models.
    compared = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    if not compared:
        return ""
    ahead = sum(ratio < LEVEL for ratio in compared.values())
    behind = [
        name.replace(", batch ", " at B ") for name, ratio in compared.items() if ratio > 2 - LEVEL
    ]
    return (
        f"A step is ahead of Opacus' fastest mode at {ahead} of {len(compared)} sizes, "
        f"and behind it at {'; '.join(behind) or 'none'}. "
    )


def wanted() -> list[dict[str, Any]]:
    """Return the table's rows."""
    return tomllib.loads((RESULTS / "rows.toml").read_text(encoding="utf-8"))["rows"]


def goals() -> dict[str, float]:
    """Return what a private step over a plain one was to be, by model."""
    return {
        row["row"]: row["reach"] for row in wanted() if row["key"] == "ours" and "over" not in row
    }


def _mean(rows: Mapping[str, Any], name: str, key: str) -> float:
    return mean(record[key] for row, record in rows.items() if row.startswith(f"{name}, seed"))


def targets(results: Mapping[str, Any]) -> Iterator[str]:
    """Return the table of what was to reach, a row for each figure that was measured."""
    yield from (
        "| what | before | now, Intel | another maker | to reach | command: `fl-dpbayes bench` |",
        "|---" * 6 + "|",
    )
    for row in wanted():
        measured = results.get(row["file"], {"rows": {}})["rows"]
        # `*` stands for all rows of the file, of which the worst is shown.
        worst = row["row"] == "*"
        values = {
            name: _value(record, row)
            for name, record in measured.items()
            if (worst or name == row["row"]) and _is_measured(record, row)
        }
        less = row.get("less", row["row"])
        if not values or not (worst or less in measured):
            continue
        name, value = max(values.items(), key=lambda item: item[1])
        value -= measured[less][row["key"]] if "less" in row else 0.0
        figure_text = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        if value <= row["reach"]:
            figure_text = f"**{figure_text}**"
        if worst:
            figure_text += f" ({name})"
        elsewhere = other_maker(results, row, name)
        command = row["file"] if worst else f"{row['file']} --only '{name}'{row.get('options', '')}"
        yield (
            f"| {row['what']} | {row['before']} | {figure_text} | {elsewhere} | {row['reach']:,} | "
            f"`{command}` |"
        )


def other_maker(results: Mapping[str, Any], row: Mapping[str, Any], name: str) -> str:
    """Return the figure of another maker's processor, or a dash where it was not measured."""
    measured = results.get(row["file"] + OTHER, NOTHING)["rows"]
    if name not in measured or not _is_measured(measured[name], row):
        return "–"
    less = row.get("less")
    if less is not None and less not in measured:
        return "–"
    value = _value(measured[name], row)
    if less is not None:
        value -= measured[less][row["key"]]
    return f"{value:.3g}"


def widths(results: Mapping[str, Any]) -> Iterator[str]:
    """Return what a step costs by width beside one of width 16, and how many rows a pass has."""
    yield (
        "| width | logistic regression | MLP | logistic regression, another maker | MLP, "
        "another maker |"
    )
    yield "|---|---|---|---|---|"
    files = [results.get(f"sizes{end}", NOTHING)["rows"] for end in ("", OTHER)]
    numbers = sorted(
        {int(name.rpartition(" ")[2]) for rows in files for name in rows if ", width " in name}
    )
    for width in numbers:
        cells = [
            _width_cell(rows.get(f"{model}, width {width}"))
            for rows in files
            for model in ("logistic", "MLP")
        ]
        yield f"| {width} | " + " | ".join(cells) + " |"


def _width_cell(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "–"
    ways = [way for way in ("aligned", "separate") if record[way]]
    return ", ".join([f"{record['over width 16']:.2f}", f"{record['rows a pass']:.0f} rows", *ways])


def batches(results: Mapping[str, Any]) -> Iterator[str]:
    """Return our step over the fastest mode of Opacus by model and batch size, bold if ahead."""
    files = [results.get(f"sizes{end}", NOTHING)["rows"] for end in ("", OTHER)]
    sizes = sorted(
        {int(name.rpartition(" ")[2]) for rows in files for name in rows if ", batch " in name}
    )
    yield "| model | " + " | ".join(f"B {size:,}" for size in sizes) + " |"
    yield "|---" * (len(sizes) + 1) + "|"
    for model in dict.fromkeys(
        name.partition(", batch ")[0] for name in files[0] if ", batch " in name
    ):
        cells = [
            " / ".join(_batch_cell(rows.get(f"{model}, batch {size}")) for rows in files if rows)
            for size in sizes
        ]
        yield f"| {model} | " + " | ".join(cells) + " |"


def _batch_cell(record: Mapping[str, Any] | None) -> str:
    ratio = None if record is None else beside_opacus(record)
    if ratio is None:
        return "–"
    return f"**{ratio:.2f}**" if ratio < LEVEL else f"{ratio:.2f}"


def beside_opacus(record: Mapping[str, Any]) -> float | None:
    """Return our step over the fastest mode of Opacus, or nothing where no mode takes the model."""
    modes = [record[mode] for mode in OPACUS if mode in record]
    return record["ours"] / min(modes) if modes else None


def _is_measured(record: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return row["key"] in record and any(key in record for key in row.get("over", [row["key"]]))


def _value(record: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    below = [record[key] for key in row.get("over", []) if key in record]
    return record[row["key"]] / (min(below) if below else 1.0)


def end_to_end(results: Mapping[str, Any]) -> Iterator[str]:
    """Return mean and standard deviation over seeds of both programs."""
    yield from ("| | " + " | ".join(MEASURED) + " |", "|---" * (len(MEASURED) + 1) + "|")
    rows = results.get("end-to-end", {"rows": {}})["rows"]
    for name in ("ours", "Opacus and FedAvg"):
        seeds = [record for row, record in rows.items() if row.startswith(f"{name}, seed")]
        if len(seeds) > 1:
            cells = (_spread([seed[key] for seed in seeds if key in seed]) for key in MEASURED)
            yield f"| {name}, {len(seeds)} seeds | " + " | ".join(cells) + " |"


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    digits = 4 if mean(values) < 1 else 2
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def on_a_gpu(results: Mapping[str, Any]) -> Iterator[str]:
    """Return what a private step takes of a plain one on a GPU, by model, batch size and method."""
    columns = ("plain, ms", *METHODS, "MiB plain", "MiB ours", "rows a pass")
    yield "| model | B | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 2) + "|"
    for name, record in results.get("gpu", NOTHING)["rows"].items():
        values = [f"{record[key]:.3g}" if key in record else "–" for key in columns]
        model, _, batch = name.partition(", batch ")
        yield f"| {model} | {batch} | " + " | ".join(values) + " |"


def machines(results: Mapping[str, Any]) -> Iterator[str]:
    """Return on which machine and when each file was measured."""
    for name, content in results.items():
        when = sorted(record["measured"] for record in content["rows"].values())
        load = [record["load before"] for record in content["rows"].values()]
        machine = ", ".join(f"{key} {value}" for key, value in content["machine"].items())
        if "preloaded" in content["machine"]:
            machine += " (taken by libraries for a processor of AMD; emulated)"
        if not when:
            continue
        yield (
            f"- `{name}.json`: {machine}; {when[0]} to {when[-1]}, load {min(load):.1f} to "
            f"{max(load):.1f}."
        )


def figure() -> Figure:
    """Draw what a private step costs by model, and a site's round by the number of sites."""
    files = {
        name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("clip", "simulation")
    }
    models = files["clip"]["rows"]
    growth = files["simulation"]["rows"]
    reach = goals()
    drawn = look.titled_figure(
        "What a private step and a round cost",
        "whole private steps over plain SGD steps, CPU time\nbar, dashed line: to reach",
        5.4,
    )
    steps, sites = drawn.subplots(2, 1, height_ratios=(3, 1.3))
    look.quiet_grid(steps, "x")
    names = [name for name in models if name in reach][::-1]
    for method, (colour, marker) in METHODS.items():
        places = [
            (models[name][method], at) for at, name in enumerate(names) if method in models[name]
        ]
        style = {"markersize": 5, "zorder": 3} if method == "ours" else {"markersize": 3.5}
        steps.plot(
            *zip(*places, strict=True),
            marker,
            color=colour,
            linestyle="none",
            label=method,
            **style,
        )
    steps.plot(
        [reach[name] for name in names],
        range(len(names)),
        "|",
        color=look.INK,
        markersize=11,
        linestyle="none",
    )
    steps.axvline(1, color=look.MUTED, linewidth=0.8)
    steps.set(xscale="log", yticks=range(len(names)), yticklabels=names, title="times a plain step")
    ticks = [1, 2, 5, 10, 20, 50]
    steps.set_xticks(ticks, [f"{tick}" for tick in ticks])
    look.quiet_grid(sites, "y")
    measured = {
        int(name.split()[0]): record[SITES]
        for name, record in growth.items()
        if name.endswith(" sites")
    }
    across = sorted(measured)
    sites.plot(across, [measured[count] for count in across], "o-", color=look.BLUE, markersize=4)
    sites.axhline(5, color=look.INK, linewidth=1, linestyle=(0, (5, 3)))
    sites.set(xscale="log", xlabel="sites", title="CPU ms of a site's round beyond its chain")
    sites.set_xticks(across, [f"{count:,}" for count in across])
    sites.set_ylim(bottom=0)
    look.add_legend(drawn, 3)
    return drawn


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    described = look.drawn_figure(
        "speed", "What a private step and a site's round cost", None, figure
    )
    assert described is not None
    (RESULTS / "speed.svg").write_text(described.svg, encoding="utf-8")
