"""The package of docs/extending.md, whose sampler, rule and source come by entry points.

In a process that finds it.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").partition("\n## ")[0]
FILES = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", TEXT, re.S))
# A record's own module may come first.
RUN = """
from plugin.nesterov import Nesterov
from pathlib import Path
from rich.console import Console
from clients.messages import RefusedError
from clients.policy import check_code
from fl_dpbayes.config.scenario import load_scenario, site_plan
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.engine.simulate import simulate
import server.federation
scenario = load_scenario("digits", ["data.source=tumours", "partition={kind='iid'}",
    "training={rounds=2, steps_per_round=4, burn_in=0, thinning=2}",
    "sites={a={role='train'}, b={role='train'}}", "sampler.kind=dp-nesterov", "aggregation={rule='first'}"])
assert type(scenario.sampler) is Nesterov
server.federation.write_report = lambda folder: None
simulate(scenario, "inline", Path("run"), None, Console())
site = read_site_file(next(Path("run/sites").glob("*.toml")))
request = TrainRequest.model_construct(model=scenario.model, plan=site_plan(scenario, 2))
check_code(site, request)
try:
    check_code(site.model_copy(update={"policy": site.policy.model_copy(update={"allowed_code": ()})}), request)
except RefusedError as error:
    print(error, Path("run/summary.json").read_text())
"""


LOAD = """
from fl_dpbayes.config.scenario import load_scenario
load_scenario("digits", ["data.source=tumours", "sampler.kind=dp-nesterov", "aggregation={rule='first'}"])
"""


def run(
    folder: Path, code: str = RUN, file: str = "plugin/first.py", old: str = "", new: str = ""
) -> str:
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    points = []
    for group, named in project["entry-points"].items():
        points += [f"[{group}]", *(f"{name} = {place}" for name, place in named.items())]
    installed = "{name}-{version}.dist-info".format(**project)
    for name, content in {
        **FILES,
        file: FILES[file].replace(old, new),
        f"{installed}/entry_points.txt": "\n".join(points),
        f"{installed}/METADATA": "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".format(
            **project
        ),
        f"{installed}/RECORD": "".join(f"{name},,\n" for name in FILES if name.endswith(".py")),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_sampler_rule_and_source_of_another_package_run_without_a_change_here(
    tmp_path: Path,
) -> None:
    said = run(tmp_path)
    for words in (
        '"aggregation": "first"',
        '"dp-nesterov"',
        "POLICY_DENIED plan.sampler.kind",
        '"version": "1.2"',
    ):
        assert words in said, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("plugin/nesterov.py", '"nesterov", ', '"sgld", ', "Nesterov takes the name 'sgld'"),
        ("plugin/first.py", '"plugin.code"', '""', "implemented_by"),
        ("plugin/tumours.py", "import SourceConfig", "import Nothing", "cannot be loaded"),
    ],
)
def test_entry_point_that_does_not_fit_is_named(
    tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    assert said in run(tmp_path, LOAD, file=file, old=old, new=new)
