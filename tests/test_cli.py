"""The command line as a user meets it: wrong input in one clear line, status 2, no traceback."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from fl_dpbayes import cli
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.coordinator.deploy import AT_EACH_SITE, deploy_resume
from fl_dpbayes.errors import UserError
from fl_dpbayes.version import __version__

SOLVE = "solve --epsilon 1 --delta 1e-5 --q .1 --steps 9"
ACCOUNT = "account --delta 1e-5"
# What is typed, and what is said of it.
WRONG = {
    "simulate nowhere": "no scenario 'nowhere'",
    "simulate digits --set privacy.delta=0.01": "below 1/n",
    "simulate digits --set partition.min_records=900": "partition.min_records",
    "simulate mnist --data-dir /nonexistent": "--data-dir",
    "simulate README.toml": "does not exist",
    "solve --epsilon -1 --delta 1e-5 --q 0.1 --steps 10": "epsilon",
    "solve --epsilon 1 --delta 1e-5 --q 2 --steps 9": "error: --q is 2",
    f"{SOLVE} --clip-norm 0": "error: --clip-norm is 0",
    f"{SOLVE} --schedule {{initial=1}}": (
        '(for example {kind="polynomial", initial=0.1, power=0.33}): schedule: kind'
    ),
    f'{SOLVE} --schedule {{kind="constant",initial=-1}}': "schedule.initial is -1",
    f'{SOLVE} --schedule {{kind="constant"}}': "key 'schedule.initial' is missing",
    f"{SOLVE} --schedule [3]": "schedule is [3]: it must be a table; its key 'kind' is one of",
    f"{SOLVE} --temperature 2": "--temperature is 2.0, but --coupling constant has no",
    f"{SOLVE} --coupling langevin --temperature 2": "--coupling langevin finds its own",
    "account --delta 2 --sigma 1 --q 1 --steps 1": "--delta is 2",
    f"{ACCOUNT} --sigma -1 --q .1 --steps 1": "error: --sigma is -1.0",
    f"{ACCOUNT} --sigma 1 --q nan --steps 1": "error: --q is nan",
    f"{ACCOUNT} --sigma 1 --q .1 --steps 1{'0' * 23}": "from 0 to 1e+12",
    f"{ACCOUNT} --sigma 1": "--sigma, --q and --steps together",
    f"{ACCOUNT} --history /nonexistent.json": "cannot be read",
    "predict /nonexistent x.csv": "does not exist",
    "site ledger show /nonexistent.toml": "does not exist",
    "simulate digits --engine x": "'flower', 'inline'; see  fl-dpbayes simulate --help",
    "simulate --resume": "requires an argument",
    "site dry-run x.toml": "'--scenario'; see  fl-dpbayes site dry-run --help",
    "nonsense": "No such command 'nonsense'; see  fl-dpbayes --help",
    "simulat quickstart": "error: No such command 'simulat'. Did you mean 'simulate'?; see  fl-dpbayes",
}


@pytest.mark.parametrize("typed", WRONG)
def test_wrong_input_is_one_line_with_status_two(typed: str, refusal) -> None:
    error = refusal(*typed.split())
    assert WRONG[typed] in error
    assert error.strip().count("\n") == 0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[[1, 0.1]]", ": row 0 is [1, 0.1]"),
        ("{", " is not JSON: "),
        ("{}", ": expected a JSON list"),
        ("[[1, 0.1, 1e23]]", ": its steps exceed 1e+12"),
        ("[[-1, 0.1, 1]]", "noise_multiplier is -1"),
        ("", " is not JSON: "),
    ],
)
def test_bad_history_is_named_with_its_file(
    content: str, expected: str, tmp_path: Path, refusal
) -> None:
    path = tmp_path / "steps.json"
    path.write_text(content)
    error = refusal(*ACCOUNT.split(), "--history", str(path))
    assert expected in error.partition(f"--history {path}")[2]
    assert f"{path} :" not in error


def test_deployed_run_whose_submission_failed_or_was_stopped_is_gone_on_with(
    tmp_path, command, monkeypatch
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "deployment.md").read_text()
    scenario, run = tmp_path / "stroke.toml", tmp_path / "run"
    scenario.write_text(textwrap.dedent(page.partition("<<'END'\n")[2].partition("   END\n")[0]))
    answers = iter([UserError("nobody answers"), KeyboardInterrupt()])

    def submit(*_: object) -> str:
        with pytest.raises(UserError, match="another process works on"):
            deploy_resume(run, Console())
        raise next(answers)

    monkeypatch.setattr("fl_dpbayes.engine.flower_command.FlowerCommand.submit", submit)
    for words, expected, said in (
        (
            ("run", scenario, "--out", run),
            1,
            "nobody answers; once the cause is removed, go on with",
        ),
        (("resume", run), 130, "may be under way: go on with"),
    ):
        status, _, error = command("deploy", *words)
        assert (
            status,
            f"{said}  fl-dpbayes deploy resume {run}" in " ".join(error.split("\n")),
        ) == (expected, True)
    assert "not submitted" in command("deploy", "status", run)[1]
    # A run's folder can be moved.
    assert load_scenario(str(run / "scenario.toml")).data.source.path == AT_EACH_SITE
    down = {"error-message": "Connection to the SuperLink is unavailable."}
    monkeypatch.setattr("fl_dpbayes.engine.flower_command.FlowerCommand.ask", lambda *_: down)
    deployment = json.loads((run / "deployment.json").read_text())
    deployment |= {"superlink": "remote", "runs": ["1"]}
    (run / "deployment.json").write_text(json.dumps(deployment))
    for event, expected in (
        ('"failed", "reason": "north did not join"', True),
        ('"finished"', False),
    ):
        with (run / "events.jsonl").open("a") as file:
            file.write(f'{{"event": {event}}}\n')
        shown = command("deploy", "status", run)[1]
        assert (
            "'remote' does not answer" in shown,
            "stopped: north did not join; go" in shown,
        ) == (True, expected)


def test_internal_fault_shows_no_traceback(monkeypatch, command) -> None:
    monkeypatch.setattr("fl_dpbayes.config.scenario.load_scenario", lambda *arguments: 1 / 0)
    status, _, error = command("simulate", "digits")
    assert (status, "Traceback" in error, "ZeroDivisionError" in error) == (1, False, True)
    assert sys.stdout.errors == "replace"


def commands_of(group, prefix=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*prefix, name))
        else:
            yield (*prefix, name)


@pytest.mark.slow
def test_every_command_has_help_with_an_example_and_describes_every_argument(command) -> None:
    for path in commands_of(cli.commands()):
        status, shown, _ = command(*path, "--help")
        assert status == 0
        assert f"Example: fl-dpbayes {' '.join(path)}" in shown
        arguments = (
            shown.partition("Arguments")[2].partition("Options")[0].replace("[required]", "")
        )
        assert all(len(line.split()) > 5 for line in arguments.splitlines() if "* " in line), (
            path,
            arguments,
        )


def test_account_and_solve_print_json(command) -> None:
    _, printed, _ = command(*f"{ACCOUNT} --sigma 1 --q 1 --steps 1 --json".split())
    assert json.loads(printed)["epsilon"]["gdp"] == pytest.approx(4.377178095681137, abs=1e-9)
    _, printed, _ = command(*f"{ACCOUNT} --sigma 0 --q 1 --steps 1 --json".split())
    infinite = {"delta": 1e-5, "adjacency": "add_or_remove_one", "mu": "inf", "mu_kind": "exact"}
    assert json.loads(printed) == infinite | {"epsilon": {"pld": "inf", "rdp": "inf", "gdp": "inf"}}
    answer = json.loads(command(*SOLVE.split(), "--json")[1])
    assert answer.keys() == {"noise_multiplier", "epsilon", "delta", "history"}
    assert 0.999 <= answer["epsilon"] <= 1
    assert answer["history"] == [[answer["noise_multiplier"], 0.1, 9]]
    found = json.loads(command(*SOLVE.split(), "--coupling", "langevin", "--json")[1])
    assert found.keys() == {"temperature", "epsilon", "delta", "history"}
    assert f"{answer['noise_multiplier']:.6g}" in command(*SOLVE.split())[1]


def test_account_table_says_how_far_the_limit_under_reports(command) -> None:
    text = " ".join(command(*f"{ACCOUNT} --sigma 1 --q .01 --steps 1000".split())[1].split())
    said = (
        "1.82827",
        "GDP (clt)",
        "it under-reports against PLD by 11.5 %",
        "adding or removing one unit",
    )
    assert [words for words in said if words not in text] == []
    exact = command(*f"{ACCOUNT} --sigma 5 --q 1 --steps 50 --adjacency replace_one".split())[1]
    assert [words in exact for words in ("GDP (exact)", "replacing one unit", "under-reports")] == [
        True,
        True,
        False,
    ]


def test_run_of_an_older_version_is_named_where_it_is_to_predict(tmp_path: Path, refusal) -> None:
    (tmp_path / "journal.jsonl").touch()
    for name in ("predict", "evaluate"):
        said = refusal(name, str(tmp_path), "x.csv")
        assert "holds a run of an older version of fl-dpbayes (journal.jsonl): finish it" in said


@pytest.mark.parametrize("asked", [["report"], ["predict", "x.csv"], ["evaluate", "x.csv"]])
def test_result_of_a_run_that_was_cut_off_is_asked_of_resume(
    asked, tmp_path: Path, refusal
) -> None:
    (tmp_path / "scenario.toml").write_text("")
    name, *data = asked
    said = f"is not finished: go on with  fl-dpbayes simulate --resume {tmp_path}"
    assert said in refusal(name, str(tmp_path), *data)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["simulate", "study", "audit"])
def test_an_unknown_name_is_told_before_torch_or_flower_is_imported(asked: str) -> None:
    code = (
        f"import sys; from fl_dpbayes import cli; sys.argv = ['fl-dpbayes', '{asked}', "
        "'nonsense']\n"
    )
    code += (
        "try: cli.main()\nexcept SystemExit as end: sys.exit(9 if {'torch', 'flwr'} & "
        "{*sys.modules} else end.code)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 2


# Few hospitals: most of the time goes into their figures.
SMALL_RUN = """
import sys
from fl_dpbayes import cli
sys.argv = ["fl-dpbayes", "simulate", "stroke-uk", "--engine", "inline", "--out", sys.argv[1],
    "--set", "training={rounds=2, steps_per_round=5, burn_in=2, thinning=2}",
    "--set", "evaluation.baselines=false",
    "--set", "sites={uk-1={role='train'}, uk-6={role='train'}, uk-81={role='held_out'}}"]
try:
    cli.main()
except SystemExit as end:
    heavy = {"datasets", "scipy.signal", "scipy.stats", "sklearn", "sympy", "torchvision"}
    print(sorted(heavy & {*sys.modules}), end.code)
"""


@pytest.mark.slow
def test_a_run_imports_no_package_that_only_others_need(tmp_path: Path) -> None:
    call = [sys.executable, "-c", SMALL_RUN, str(tmp_path / "run")]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr


@pytest.mark.slow
def test_nothing_is_printed_after_a_command_where_torch_has_imported_triton() -> None:
    pytest.importorskip("triton")
    code = (
        "import sys; from triton._C import libtriton; import triton\n"
        "from fl_dpbayes import cli; sys.argv = ['fl-dpbayes', '--version']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


# As `python -c` has it, where the working folder comes first on the path. Modules of these names are
# forgotten between the cases, as if each were a process of its own, which takes seconds to begin.
OWN_MODULES = """
import sys
from fl_dpbayes.cli import main
from fl_dpbayes.config.kinds import import_apps

def forget():
    for name in [name for name in sys.modules if name.split(".")[0] in ("server", "clients")]:
        del sys.modules[name]

for name in ("server", "clients"):
    __import__(name)
    for asked in (["simulate", "digits", "--engine", "inline", "--out", "out"], ["audit", "digits"]):
        sys.argv[1:] = asked
        try:
            main()
        except SystemExit as end:
            print(end.code)
    forget()
import_apps()
import clients.app, server.app
print("alone")
"""


@pytest.mark.slow
def test_own_server_and_clients_are_left_alone_or_named_before_anything_is_written(
    tmp_path: Path,
) -> None:
    in_the_way = (tmp_path / "server.py", tmp_path / "clients" / "__init__.py")
    for path in in_the_way:
        path.parent.mkdir(exist_ok=True)
        path.write_text("print('mine')\n")
    call = [sys.executable, "-c", OWN_MODULES]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*(2 * ["mine", "2", "2"]), "alone"]
    said = "".join(done.stderr.splitlines())
    assert [said.count(f"{path} is in the way") for path in in_the_way] == [2, 2]
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["fl_dpbayes", "fl_dpbayes.cli"])
def test_it_is_a_module_to_run_too(module: str) -> None:
    command = [sys.executable, "-m", module]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"fl-dpbayes {__version__}\n"
    assert subprocess.run([*command, "nothing"], capture_output=True, check=False).returncode == 2
