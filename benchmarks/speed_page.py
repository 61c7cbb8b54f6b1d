"""Writes the table of docs/speed.md and its figure from docs/results/speed/*.json.

Run `python -m benchmarks.speed_page`.
"""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fl_dpbayes.report import figure_style as look

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "speed"
# Files of the same benchmark under emulation of another maker's processor.
OTHER = "-another-maker"
OPACUS = ["ghost", "hooks", "functorch"]
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
    results = read_results()
    text = PAGE.read_text(encoding="utf-8")
    blocks = {
        "answer": answer(results),
        "rows": markdown(targets(results)),
        "widths": markdown(widths(results)),
        "batches": markdown(batches(results)),
        "gpu": markdown(on_a_gpu(results)),
        "end-to-end": markdown(end_to_end(results)),
        "machine": "\n".join(machines(results)),
    }
    for name, block in blocks.items():
        before, _, rest = text.partition(f"<!-- {name} -->")
        _, _, after = rest.partition("<!-- end -->")
        text = f"{before}<!-- {name} -->\n\n{block}\n\n<!-- end -->{after}"
    return text


def read_results() -> dict[str, Any]:
    """Return what was measured, by file."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }


def frame_of(results: Mapping[str, Any], file: str) -> pd.DataFrame:
    """Return a file's rows by their names; empty where nothing was measured."""
    rows = results[file]["rows"] if file in results else {}
    return pd.DataFrame.from_dict(rows, orient="index")


def markdown(table: pd.DataFrame) -> str:
    """Write a table of texts, whose missing cells are dashes."""
    rows = [table.columns, *table.fillna("–").itertuples(index=False)]
    header, *lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([header, "|---" * len(table.columns) + "|", *lines])


def answer(results: Mapping[str, Any]) -> str:
    """Return the first words: what a private step and a federation cost."""
    table = targets(results)
    reached = table["now, Intel"].str.startswith("**").sum()
    steps = frame_of(results, "clip")["ours"]
    ratios = steps[steps.index.isin(goals())]
    means = seeds_of(results).groupby("program")[["CPU s", "test accuracy"]].mean()
    ours, peer = means.loc["ours"], means.loc["Opacus and FedAvg"]
    return (
        f"**A private step of {len(ratios)} models costs {ratios.min():.1f} to "
        f"{ratios.max():.1f} times a plain one, "
        "noise, padding and checks included, and "
        f"{steps['fallback: weights called']:.1f} times where gradients must be "
        "formed one by one. "
        f"Federated MNIST at equal epsilon takes {ours['CPU s']:.1f} CPU seconds, start to report, "
        f"where the same with Opacus and Flower's FedAvg takes {peer['CPU s']:.1f}, "
        f"at accuracy {ours['test accuracy']:.3f} and {peer['test accuracy']:.3f}. "
        f"Of {len(table)} figures that were to be reached {reached} are. "
        f"{against_opacus(results)}Processor: Intel.**"
    )


def against_opacus(results: Mapping[str, Any]) -> str:
    """Count the sizes where a step is ahead of Opacus' fastest mode, and name those behind."""
    ratios = beside_opacus(frame_of(results, "sizes"))
    # No mode of Opacus takes some models.
    compared = ratios[ratios.index.str.contains(", batch ")].dropna()
    behind = [name.replace(", batch ", " at B ") for name in compared.index[compared > 2 - LEVEL]]
    return (
        f"A step is ahead of Opacus' fastest mode at {(compared < LEVEL).sum()} of "
        f"{len(compared)} sizes, and behind it at {'; '.join(behind) or 'none'}. "
    )


def wanted() -> list[dict[str, Any]]:
    """Return the table's rows."""
    return tomllib.loads((RESULTS / "rows.toml").read_text(encoding="utf-8"))["rows"]


def goals() -> dict[str, float]:
    """Return what a private step over a plain one was to be, by model."""
    return {
        row["row"]: row["reach"] for row in wanted() if row["key"] == "ours" and "over" not in row
    }


def figures(frame: pd.DataFrame, row: Mapping[str, Any]) -> pd.Series:
    """Return a wanted row's figure, of every row of the file where it asks for the worst."""
    values = frame.reindex(columns=[row["key"]])[row["key"]]
    if "over" in row:
        values = values / frame.reindex(columns=row["over"]).min(axis=1)
    if "less" in row:
        values = values - values.get(row["less"], math.nan)
    return (values if row["row"] == "*" else values.reindex([row["row"]])).dropna()


def targets(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return the table of what was to reach, a row for each figure that was measured."""
    rows = []
    for row in wanted():
        values = figures(frame_of(results, row["file"]), row)
        if values.empty:
            continue
        name, value = values.idxmax(), values.max()
        shown = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        if value <= row["reach"]:
            shown = f"**{shown}**"
        command = f"{row['file']} --only '{name}'{row.get('options', '')}"
        if row["row"] == "*":
            shown += f" ({name})"
            command = row["file"]
        elsewhere = figures(frame_of(results, row["file"] + OTHER), {**row, "row": name})
        rows.append(
            {
                "what": row["what"],
                "before": row["before"],
                "now, Intel": shown,
                "another maker": "–" if elsewhere.empty else f"{elsewhere.iloc[0]:.3g}",
                "to reach": f"{row['reach']:,}",
                "command: `fl-dpbayes bench`": f"`{command}`",
            }
        )
    return pd.DataFrame(rows)


def by_size(frame: pd.DataFrame, kind: str, cells: pd.Series) -> pd.DataFrame:
    """Arrange the cells of rows such as "MLP, width 5": models by sizes."""
    table: dict[str, dict[int, str]] = {}
    for name in frame.index[frame.index.str.contains(f", {kind} ")]:
        model, _, size = name.partition(f", {kind} ")
        table.setdefault(model, {})[int(size)] = cells[name]
    return pd.DataFrame.from_dict(table, orient="index").sort_index(axis=1)


def widths(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return what a step costs by width beside one of width 16, and how many rows a pass has."""
    names = {"logistic": "logistic regression", "MLP": "MLP"}
    parts = []
    for end, maker in (("", ""), (OTHER, ", another maker")):
        frame = frame_of(results, f"sizes{end}")
        table = by_size(frame, "width", frame.apply(_width_cell, axis=1)).T
        parts.append(table.rename(columns={key: name + maker for key, name in names.items()}))
    return pd.concat(parts, axis=1).rename_axis("width").reset_index().astype({"width": str})


def _width_cell(record: pd.Series) -> str:
    ways = [way for way in ("aligned", "separate") if record[way]]
    return ", ".join([f"{record['over width 16']:.2f}", f"{record['rows a pass']:.0f} rows", *ways])


def batches(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return our step over the fastest mode of Opacus by model and batch size, bold if ahead."""
    parts = []
    for end in ("", OTHER):
        frame = frame_of(results, f"sizes{end}")
        parts.append(by_size(frame, "batch", beside_opacus(frame).map(_batch_cell)))
    intel, other = parts
    table = intel.fillna("–") + " / " + other.reindex_like(intel).fillna("–")
    table.columns = [f"B {size:,}" for size in table.columns]
    return table.rename_axis("model").reset_index()


def _batch_cell(ratio: float) -> str:
    if math.isnan(ratio):
        return "–"
    return f"**{ratio:.2f}**" if ratio < LEVEL else f"{ratio:.2f}"


def beside_opacus(frame: pd.DataFrame) -> pd.Series:
    """Return our step over the fastest mode of Opacus, undefined where no mode takes the model."""
    return frame["ours"] / frame.reindex(columns=OPACUS).min(axis=1)


def seeds_of(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of the two programs' seeds."""
    frame = frame_of(results, "end-to-end")
    frame = frame[frame.index.str.contains(", seed ")]
    return frame.assign(program=frame.index.str.partition(", seed ").get_level_values(0))


def end_to_end(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of both programs."""
    rows = [
        {"": f"{name}, {len(seeds)} seeds"}
        | {key: _spread(seeds[key].dropna()) for key in MEASURED}
        for name, seeds in seeds_of(results).groupby("program", sort=False)
    ]
    return pd.DataFrame(rows).sort_values("", ascending=False)


def _spread(values: pd.Series) -> str:
    if values.empty:
        return "–"
    digits = 4 if values.mean() < 1 else 2
    return f"{values.mean():.{digits}f} ± {values.std():.{digits}f}"


def on_a_gpu(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return what a private step takes of a plain one on a GPU, by model, batch size and method."""
    columns = ("plain, ms", *METHODS, "MiB plain", "MiB ours", "rows a pass")
    frame = frame_of(results, "gpu")
    table = pd.DataFrame(frame.index.str.split(", batch ").tolist(), columns=["model", "B"])
    for name in columns:
        table[name] = ["–" if math.isnan(value) else f"{value:.3g}" for value in frame[name]]
    return table


def machines(results: Mapping[str, Any]) -> Iterator[str]:
    """Return the table of the machine on which, and when, each file was measured."""
    yield "| file | machine | when | load |"
    yield "|---|---|---|---|"
    for name, content in results.items():
        when = sorted(record["measured"] for record in content["rows"].values())
        load = [record["load before"] for record in content["rows"].values()]
        machine = ", ".join(f"{key} {value}" for key, value in content["machine"].items())
        if "preloaded" in content["machine"]:
            machine += " (taken by libraries for a processor of AMD; emulated)"
        if not when:
            continue
        dates, loads = f"{when[0]} to {when[-1]}", f"{min(load):.1f} to {max(load):.1f}"
        yield f"| `{name}.json` | {machine} | {dates} | {loads} |"


def figure() -> Figure:
    """Draw what a private step costs by model, and a site's round by the number of sites."""
    results = read_results()
    models = results["clip"]["rows"]
    growth = results["simulation"]["rows"]
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
    described = look.drawn_figure("speed", "What a private step and a site's round cost", figure)
    assert described is not None
    (RESULTS / "speed.svg").write_text(described.svg, encoding="utf-8")
