"""The command line: each command reads its arguments and calls the library.

Heavy imports wait until one is used.
"""

import atexit
import gc
import json
import shlex
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import click
import typer
from rich.console import Console
from typer import Argument, Option
from typer.models import ArgumentInfo

from fl_dpbayes.commands.bench import Benchmark, run_benchmark
from fl_dpbayes.coordinator.commands import deploy, provision
from fl_dpbayes.errors import FailedError, Stopped, UserError
from fl_dpbayes.hospital.commands import site
from fl_dpbayes.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The status that a shell, and typer, give a command that was stopped by Ctrl-C.
INTERRUPTED = 130
console = Console()
errors = Console(stderr=True)

Engine = Annotated[
    Literal["flower", "inline"], Option(help="flower: Ray's processes; inline: here.")
]
DataDir = Annotated[Path | None, Option(help="Data folder; default: the variable FL_DPBAYES_DATA.")]
AllowCode = Annotated[
    list[str] | None, Option(metavar="PACKAGE.MODULE:FUNCTION", help="Import the model's factory.")
]
Assignments = Annotated[
    list[str] | None,
    Option("--set", help="Change a key: privacy.epsilon=2; privacy.epsilon= removes it."),
]
Resume = Annotated[
    Path | None, Option(metavar="DIR", help="Go on with the run, or the study, of this folder.")
]
OfSite = Annotated[
    str | None, Option(help="The training hospital of the records; none: a new one.")
]
OfGroup = Annotated[str | None, Option(help="The group of a new hospital, such as its country.")]
Delta = Annotated[float, Option(help="Delta, in (0, 1).")]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
# As in `config.plan`, which is imported when a command needs it.
Adjacency = Annotated[
    Literal["add_or_remove_one", "replace_one"], Option(help="Which data sets are neighbours.")
]
Coupling = Annotated[
    Literal["constant", "temperature", "langevin", "floor"], Option(help="How noise follows steps.")
]


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Private, calibrated Bayesian federated learning for hospitals, on Flower."""
    if version:
        console.print(f"fl-dpbayes {__version__}", highlight=False)
        raise typer.Exit


def _check_resume_is_alone(
    command: str,
    resume: Path,
    *,
    assignments: list[str] | None,
    out: Path | None,
    seed: int | None = None,
) -> None:
    """Check that --resume comes without options that would change what goes on."""
    options = [f"--set {assignment}" for assignment in assignments or []]
    if seed is not None:
        options.append(f"--seed {seed}")
    if out is not None:
        options.append(f"--out {out}")
    if options:
        raise UserError(
            f"--resume goes on as it was begun, and you gave {' '.join(options)}: give  "
            f"fl-dpbayes {command} --resume {shlex.quote(str(resume))}  alone"
        )


@app.command(epilog="Example: fl-dpbayes simulate quickstart --set privacy.epsilon=2")
def simulate(
    scenario: Annotated[
        str | None, Argument(help="A shipped name or the path of a .toml file.")
    ] = None,
    engine: Engine = "flower",
    out: Annotated[
        Path | None, Option(help="Run directory; default: runs/<scenario>-<time>.")
    ] = None,
    assignments: Assignments = None,
    data_dir: DataDir = None,
    seed: Annotated[
        int | None, Option(help="Scenario seed: model start, partition, shift, evaluation.")
    ] = None,
    resume: Resume = None,
) -> None:
    """Run a scenario over many simulated sites and write its run directory.

    With --resume, go on with a run that was cut off.
    """
    from fl_dpbayes.config.scenario import load_scenario

    if resume is not None:
        from fl_dpbayes.engine.resume import resume_run

        _check_resume_is_alone("simulate", resume, assignments=assignments, out=out, seed=seed)
        resume_run(
            folder=resume,
            scenario=load_scenario(scenario) if scenario else None,
            engine=engine,
            data_dir=data_dir,
            console=console,
        )
        return
    if scenario is None:
        raise UserError(
            "give a SCENARIO, for example  fl-dpbayes simulate quickstart  (or --resume DIR)"
        )
    overrides = list(assignments or [])
    if seed is not None:
        overrides.append(f"seed={seed}")
    # A mistake in the scenario is told before seconds go into imports.
    loaded = load_scenario(scenario, overrides)
    from fl_dpbayes.engine.flower_engine import started_flower

    with ExitStack() as stack:
        if engine == "flower":
            # It starts while the engine is imported and the sites are made.
            stack.enter_context(started_flower(len(loaded.sites), loaded.resources))
        from fl_dpbayes.engine.simulate import simulate as run

        run(loaded, engine=engine, run_folder=out, data_dir=data_dir, console=console)


@app.command(
    epilog="Example: fl-dpbayes study noniid --out runs/noniid\n\n"
    "Example: fl-dpbayes study my-study.toml --set axes.seed=[1,2]\n\n"
    "Example: fl-dpbayes study --resume runs/noniid"
)
def study(
    name: Annotated[
        str | None, Argument(metavar="STUDY", help="A shipped name or the path of a .toml file.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder of the results; default: runs/<study>-<time>.")
    ] = None,
    resume: Resume = None,
    assignments: Assignments = None,
    data_dir: DataDir = None,
    workers: Annotated[
        int | None, Option(min=1, max=1024, help="Cells at a time here; default: one per core.")
    ] = None,
    ray_address: Annotated[
        str | None, Option(help="A Ray cluster, whose machines have package and data.")
    ] = None,
    keep_runs: Annotated[
        bool, Option("--keep-runs", help="Keep each cell's run directory, not only figures.")
    ] = False,
) -> None:
    """Run a scenario along axes (partition, sampler, budget, seed, shift) and compare methods.

    With --resume, go on with a study that was cut off.
    """
    from fl_dpbayes.config.study_file import load_study

    if resume is not None:
        _check_resume_is_alone("study", resume, assignments=assignments, out=out)
    # A mistake in the study is told before seconds go into imports.
    loaded = load_study(name, assignments or []) if name else None
    from fl_dpbayes.study.study import Workers, begin_study, resume_study

    where = Workers(count=workers, ray_address=ray_address, keep_runs=keep_runs)
    if resume is not None:
        finished = resume_study(
            folder=resume, study=loaded, data_dir=data_dir, workers=where, console=console
        )
    elif loaded is None:
        raise UserError("give a STUDY, for example  fl-dpbayes study noniid  (or --resume DIR)")
    else:
        finished = begin_study(
            study=loaded, folder=out, data_dir=data_dir, workers=where, console=console
        )
    raise typer.Exit(0 if finished else 1)


@app.command(
    epilog="Example: fl-dpbayes init --from patients.csv --label died --site hospital "
    "--unit patient"
)
def init(
    data: Annotated[
        list[Path], Option("--from", help="CSV or Parquet tables of the same columns; or images.")
    ],
    site: Annotated[
        str, Option(help="The column of hospitals, or 'file'; images: a pattern, as '^([^/]+)/'.")
    ],
    label: Annotated[
        str | None, Option(help="The column of what is to be predicted; not for images.")
    ] = None,
    unit: Annotated[
        str | None, Option("--unit", "--patient", help="Patients: column, or '/(P[0-9]+)_'.")
    ] = None,
    event: Annotated[
        str | None,
        Option(
            help="Which of two classes is the event, so that risks are of it; default: the rarer."
        ),
    ] = None,
    days_since: Annotated[
        list[str] | None,
        Option(help="Use a column of dates, as days since a day: admitted=2020-01-01."),
    ] = None,
    allow_shared_units: Annotated[
        bool,
        Option("--allow-shared-units", help="Keep patients who stand at several hospitals."),
    ] = False,
    explain: Annotated[
        bool, Option("--explain", help="Say of each column what was decided, and why.")
    ] = False,
    out: Annotated[
        Path | None, Option(help="The file to write; default: the data's name with .toml.")
    ] = None,
) -> None:
    """Look at tables or images on this machine and write a complete, commented scenario.

    It is to be read and corrected before it is run.
    """
    from fl_dpbayes.commands.init_scenario import propose_scenario
    from fl_dpbayes.commands.scenario_draft import DataChoices, days_by_column

    choices = DataChoices(
        paths=data,
        site=site,
        label=label,
        unit=unit,
        event=event,
        days_since=days_by_column(days_since or []),
        allow_shared_units=allow_shared_units,
    )
    proposal = propose_scenario(choices, out)
    lines = proposal.decisions if explain else proposal.notes
    for line in (*lines, proposal.summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command(epilog="Example: fl-dpbayes report runs/quickstart-20260101-120000")
def report(
    run_dir: Annotated[Path, Argument(help="A run directory, or the folder of a study.")],
    wide: Annotated[
        bool, Option("--wide", help="Print every predictor and measure, and pooled rows.")
    ] = False,
) -> None:
    """Print a run's tables and write its report.html and figures again.

    Of a study, write its page and figures again.
    """
    from fl_dpbayes.engine.simulate import show_run
    from fl_dpbayes.report.page import write_report
    from fl_dpbayes.report.study.page import write_study_report
    from fl_dpbayes.report.study.results import RECORD_FILE

    if (run_dir / RECORD_FILE).is_file():
        page = write_study_report(run_dir)
        console.print(f"report: {page}", soft_wrap=True, markup=False)
        return
    write_report(run_dir)
    show_run(run_dir, console, in_full=wide)


@app.command(
    epilog="Example: fl-dpbayes predict runs/quickstart-1 new_records.npz --out predictions.csv"
)
def predict(
    run_dir: Annotated[Path, Argument(help="A run directory.")],
    data: Annotated[
        Path, Argument(help="New records: .csv, .parquet, .npz, or a folder of images.")
    ],
    out: Annotated[
        Path | None, Option(help="Where to write the CSV; default: the terminal.")
    ] = None,
    data_dir: DataDir = None,
    skip_bad_rows: Annotated[
        bool, Option("--skip-bad-rows", help="Leave bad rows empty, and name them.")
    ] = False,
    allow_code: AllowCode = None,
    site: OfSite = None,
    group: OfGroup = None,
    update: Annotated[
        Path | None, Option(help="What `update` wrote: the hospital's own posterior.")
    ] = None,
) -> None:
    """Give class probabilities with uncertainty for new records, from a run's stored posterior."""
    from fl_dpbayes.predict.hospital_posterior import Hospital
    from fl_dpbayes.predict.stored_posterior import predict_records

    predict_records(
        run_dir=run_dir,
        data=data,
        out=out,
        console=console,
        data_dir=data_dir,
        allowed_code=allow_code or (),
        skip_bad_rows=skip_bad_rows,
        hospital=Hospital(site=site, group=group, update=update),
    )


@app.command(epilog="Example: fl-dpbayes evaluate runs/quickstart-1 labelled.csv")
def evaluate(
    run_dir: Annotated[Path, Argument(help="A run directory.")],
    data: Annotated[
        Path, Argument(help="Labelled records: .csv, .parquet, .npz, or a folder per class.")
    ],
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, Option(help="The page's folder; default: RUN_DIR/evaluation-<data>-<time>.")
    ] = None,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
    site: OfSite = None,
    group: OfGroup = None,
) -> None:
    """Measure a run's stored posterior on a labelled data set and write a page.

    Nothing leaves this machine.
    """
    from fl_dpbayes.predict.hospital_posterior import Hospital
    from fl_dpbayes.predict.stored_posterior import evaluate_records

    evaluate_records(
        run_dir=run_dir,
        data=data,
        console=console,
        data_dir=data_dir,
        allowed_code=allow_code or (),
        as_json=as_json,
        out=out,
        hospital=Hospital(site=site, group=group),
    )


@app.command(
    epilog="Example: fl-dpbayes update runs/stroke-1 own.csv --group uk\n\n"
    "Example: fl-dpbayes update runs/stroke-1 site.toml --epsilon 1 --sets 0.9"
)
def update(
    run_dir: Annotated[Path, Argument(help="A run directory.")],
    data: Annotated[
        Path, Argument(help="Labelled records, which stay here; or a site file, for one release.")
    ],
    site: OfSite = None,
    group: OfGroup = None,
    earlier: Annotated[
        Path | None, Option("--update", help="What `update` wrote, of other patients.")
    ] = None,
    epsilon: Annotated[
        float | None, Option(help="What one release by the site file's ledger may cost.")
    ] = None,
    sets: Annotated[
        float | None, Option(min=0.5, max=0.999, help="Instead: sets with this coverage.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Where to write it; default: RUN_DIR/update-<data>.json.")
    ] = None,
) -> None:
    """Fit a hospital's own level to its labelled patients, at home, or by one private release.

    What it writes is for `predict --update`.
    """
    from fl_dpbayes.predict.hospital_posterior import Hospital
    from fl_dpbayes.predict.update import update_hospital

    update_hospital(
        run_dir=run_dir,
        data=data,
        hospital=Hospital(site=site, group=group, update=earlier),
        epsilon=epsilon,
        sets=sets,
        out=out,
        console=console,
    )


@app.command(epilog="Example: fl-dpbayes account --sigma 1.0 --q 0.01 --steps 1000 --delta 1e-5")
def account(
    delta: Delta,
    sigma: Annotated[float | None, Option(help="Noise multiplier.")] = None,
    q: Annotated[float | None, Option(help="Sampling rate.")] = None,
    steps: Annotated[int | None, Option(help="Number of steps.")] = None,
    history: Annotated[
        Path | None, Option(help="A JSON list of \\[noise_multiplier, q, steps] instead.")
    ] = None,
    adjacency: Adjacency = "add_or_remove_one",
    as_json: AsJson = False,
) -> None:
    """Say what a history of noisy steps cost, by every method."""
    from fl_dpbayes.commands.account import account_json, account_of, account_table

    result = account_of(
        sigma=sigma,
        q=q,
        steps=steps,
        history=history,
        delta=delta,
        adjacency=adjacency,
    )
    if as_json:
        print(json.dumps(account_json(result)))
    else:
        console.print(account_table(result))


@app.command(epilog="Example: fl-dpbayes solve --epsilon 2 --delta 1e-5 --q 0.01 --steps 1000")
def solve(
    epsilon: Annotated[float, Option(help="Target epsilon.")],
    delta: Delta,
    q: Annotated[float, Option(help="Sampling rate.")],
    steps: Annotated[int, Option(help="Number of steps.")],
    coupling: Coupling = "constant",
    schedule: Annotated[
        str, Option(help="Step sizes, as TOML.")
    ] = '{kind="constant", initial=0.1}',
    units: Annotated[int, Option(help="n, for couplings with a temperature.")] = 1000,
    clip_norm: Annotated[float, Option(help="C, for couplings with a temperature.")] = 1.0,
    temperature: Annotated[
        float | None, Option(help="tau of 'floor', 1.0 if not given; others: none.")
    ] = None,
    adjacency: Adjacency = "add_or_remove_one",
    as_json: AsJson = False,
) -> None:
    """Find the noise (or temperature) that meets a target epsilon."""
    from fl_dpbayes.commands.account import (
        NoiseOptions,
        account_table,
        solve_json,
        solve_options,
        solve_table,
    )
    from fl_dpbayes.privacy.account import account as account_for

    options = NoiseOptions(
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        coupling=coupling,
        clip_norm=clip_norm,
        sampling_rate=q,
        temperature=temperature,
    )
    result = solve_options(options, schedule=schedule, steps=steps, units=units)
    if as_json:
        print(json.dumps(solve_json(result)))
    else:
        console.print(solve_table(result))
        console.print(account_table(account_for(result.history, result.delta, result.adjacency)))


@app.command(epilog="Example: fl-dpbayes audit quickstart")
def audit(
    scenario: Annotated[str, Argument(help="A shipped name or the path of a .toml file.")],
    assignments: Assignments = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Attack a scenario's own training path with planted canaries.

    The status is 1 if it leaks more than it claims.
    """
    from fl_dpbayes.config.scenario import load_scenario

    loaded = load_scenario(scenario, assignments or [])
    from fl_dpbayes.audit.audit import audit_scenario

    raise typer.Exit(audit_scenario(loaded, console, data_dir=data_dir, as_json=as_json))


@app.command(
    epilog="Example: fl-dpbayes bench clip --only mlp\n\nExample: fl-dpbayes bench memory "
    "--json memory.json"
)
def bench(
    name: Annotated[Benchmark, Argument(help="Which benchmark.")],
    only: Annotated[str, Option(help="Rows whose names contain this; default: all.")] = "",
    repeats: Annotated[
        int,
        Option(
            min=1,
            max=10_000,
            help="clip, sizes, gpu: steps; simulation: rounds; end-to-end: seeds.",
        ),
    ] = 20,
    sites: Annotated[
        int, Option(min=1, max=10_000, help="simulation, memory: 10, 100, ... up to so many.")
    ] = 100,
    engine: Annotated[
        Literal["inline", "flower"], Option(help="simulation: the engine.")
    ] = "inline",
    file: Annotated[
        str | None, Option("--json", help="Keep rows in this file and go on from it; -: print it.")
    ] = None,
) -> None:
    """Measure speed and memory, as ratios within one run, on this machine."""
    run_benchmark(
        name=name,
        only=only,
        repeats=repeats,
        sites=sites,
        engine=engine,
        file=file,
        console=console,
    )


data_commands = typer.Typer(help="The public data sets that scenarios read.", no_args_is_help=True)
app.add_typer(data_commands, name="data")


@data_commands.command("fetch", epilog="Example: fl-dpbayes data fetch heart --data-dir data")
def data_fetch(
    name: Annotated[str, Argument(help="mnist, pneumonia or heart.")], data_dir: DataDir = None
) -> None:
    """Fetch a public data set into the data folder.

    Its licence is shown, its records are checked.
    """
    from fl_dpbayes.commands.fetch_data import fetch_data

    fetch_data(name, data_dir, console)


@app.command("list", epilog="Example: fl-dpbayes list")
def list_shipped() -> None:
    """List the scenarios, studies, papers' tables and data sets, with the command for each."""
    from fl_dpbayes.commands.list_shipped import list_shipped as run

    run(console)


@app.command(epilog="Example: fl-dpbayes reproduce closer-logistic --seeds 5")
def reproduce(
    name: Annotated[str, Argument(help="Which table or figure; an unknown name lists all.")],
    full: Annotated[bool, Option("--full", help="The paper's size and its seeds, 3 or 5.")] = False,
    seeds: Annotated[
        int | None, Option(min=1, help="Repetitions; default: 1, or with --full its own.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder; what it has is kept. Default: runs/reproduce/NAME.")
    ] = None,
    data_dir: DataDir = None,
    workers: Annotated[int, Option(min=1, help="Number of processes.")] = 2,
) -> None:
    """Measure a table or figure of the papers and print it beside what they report.

    A rerun does what is missing.
    """
    from fl_dpbayes.study.study import Workers
    from fl_dpbayes.study.study import reproduce as run

    finished = run(
        name=name,
        full=full,
        seeds=seeds,
        folder=out,
        data_dir=data_dir,
        workers=Workers(count=workers),
        console=console,
    )
    raise typer.Exit(0 if finished else 1)


app.add_typer(site, name="site")
app.add_typer(deploy, name="deploy")
app.command(
    help=(
        "Make a certificate authority, the server's certificate, and the files of the coordinator "
        "and the hospitals."
    ),
    epilog="Example: fl-dpbayes provision federation --sites north,south --host fl.example.org",
)(provision)


def commands() -> click.Command:
    """Build all commands, with the help of their arguments.

    click 8.5 and newer clears the help that typer set, so it is set again.
    """
    root = typer.main.get_command(app)
    to_visit = [root]
    while to_visit:
        command = to_visit.pop()
        to_visit += getattr(command, "commands", {}).values()
        if command.callback is None:
            continue
        hints = get_type_hints(command.callback, include_extras=True)
        for parameter in command.params:
            for annotation in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(annotation, ArgumentInfo):
                    parameter.help = annotation.help  # type: ignore[attr-defined]
    return root


def main() -> None:
    """Run the command line, and exit.

    The status is 0 for success, 1 for a failure, 2 for a mistake of the user, 130 for a stop.
    """
    # Imported modules stay: to look through them for garbage at every 700 objects takes a second of
    # a short run.
    gc.set_threshold(10_000)
    atexit.register(_skip_last_collection)
    # A terminated command must end the processes that it started, as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        # Not every terminal's encoding has an epsilon.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        status = commands()(prog_name="fl-dpbayes", standalone_mode=False) or 0
        if status == INTERRUPTED:
            errors.print("stopped", style="red")
        sys.exit(status)
    except click.ClickException as error:
        # Click 8.1 has no class of that name, and shows the help by itself.
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        _fail(_usage_error(error), 2)
    except (Stopped, click.Abort) as stop:
        _fail(f"stopped: {stop}".rstrip(": "), INTERRUPTED)
    except UserError as error:
        _fail(f"error: {error}", 1 if isinstance(error, FailedError) else 2)
    except Exception as error:
        name = type(error).__name__
        _fail(
            f"error: an internal fault ({name}: {error}); please report it with the "
            "command you gave",
            1,
        )


def _skip_last_collection() -> None:
    """Leave to the operating system what a last look for garbage would take a second to find.

    But where torch has imported triton: its nanobind prints a line for each object that is left.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _usage_error(error: click.ClickException) -> str:
    """Say in one line what is wrong with an option or argument, and where it is explained."""
    # Typer writes which command was meant into the message, to which click 8.4 adds the same.
    is_hinted = "Did you mean" in error.message
    text = error.message if is_hinted else error.format_message()
    reason = " ".join(text.split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = "fl-dpbayes" if context is None else context.command_path
    return f"error: {reason}; see  {path} --help"


def _fail(text: str, status: int) -> None:
    errors.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
