"""`deploy run` through real processes: a late site is waited for, a failed run has status 1, a resumed one goes on."""

import json
import re
import threading
from pathlib import Path

import pytest

from tests.deploy.real_federation import RealFederation
from tests.deploy.sites import site_record

SCENARIO = """\
name = "real"
[data]
test_fraction = 0.2
[data.source]
kind = "table"
label = "y"
classes = 2
features = ["a", "b"]
centers = [0.0, 0.0]
scales = [1.0, 1.0]
[sites.north]
role = "train"
[sites.south]
role = "train"
[model]
kind = "logistic"
[sampler]
kind = "dp-sgd"
step_size = { kind = "constant", initial = 0.3 }
[training]
rounds = 2
steps_per_round = 5
thinning = 5
[privacy]
epsilon = 2.0
delta = 1e-3
clip_norm = 1.0
sampling_rate = 0.5
[aggregation]
rule = "fald"
[evaluation]
release = "none"
"""


@pytest.mark.slow
def test_late_site_is_waited_for_and_the_page_names_who_joined(tmp_path: Path) -> None:
    federation = RealFederation(tmp_path, ["north", "south", "visitor"])
    try:
        federation.start_coordinator()
        files = {name: federation.add_site(site_record(tmp_path / name, name)) for name in federation.names}
        bundle = re.search("[0-9a-f]{64}", (federation.kit / "hospital" / "README.md").read_text())[0]
        for name, file in files.items():
            federation.register(file, name)
            # The records are checked; the ledger that check asks for is made then.
            federation.cli("site", "check", file, "--only", "data", status=1)
            federation.cli("site", "ledger", "create", file)
            federation.cli("site", "approve", file, bundle, "--yes")
        federation.start_site(files["north"])
        federation.start_site(files["visitor"])
        (tmp_path / "real.toml").write_text(SCENARIO)
        late = threading.Timer(25, federation.start_site, [files["south"]], {"wait": False})
        late.start()
        said = federation.cli("deploy", "run", "real.toml", "--out", "out", seconds=300)
        late.join()
        assert "waiting for south" in said, said
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert [row["site"] for row in summary["privacy"]] == ["north", "south"]
        assert any("visitor: it is no site of the scenario" in line for line in summary["warnings"])
        assert "nothing is left to do" in federation.cli("deploy", "resume", "out")
        assert "finished:completed; round 2 of 2 rounds" in federation.cli("deploy", "status", "out")
        # South swaps its features, under the same names: nobody pays for anything.
        ledgers = [federation.cli("site", "ledger", "show", file) for file in files.values()]
        swapped = files["south"].read_text().replace('"a",\n    "b"', '"b",\n    "a"')
        assert swapped != files["south"].read_text()
        files["south"].write_text(swapped)
        failed = federation.cli("deploy", "run", "real.toml", "--out", "swapped", status=1, seconds=300)
        assert "south has other features than the scenario" in failed
        assert "no privacy was spent" in failed
        assert ledgers == [federation.cli("site", "ledger", "show", file) for file in files.values()]
    finally:
        federation.end()
