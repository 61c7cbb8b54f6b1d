"""Real sites: nodes are known by the names of their registered keys, and waited for by these."""

import json
import re
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from flwr.app import Context, RecordDict

from fl_dpbayes.config.record_schema import record_schema
from fl_dpbayes.config.sources import Table
from fl_dpbayes.data.simulation import SITES_FOLDER
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.report.warnings import sentence
from server import registered_nodes
from server.app import app
from server.federation import run_federation
from server.registered_nodes import allowed_nodes, unlisted_nodes, wait_for_sites
from tests.server.conftest import Cut, name_nodes


@pytest.fixture
def hospitals(federation):
    prepared = federation()
    name_nodes(prepared)
    prepared.real = prepared.folder.parent / "real"
    prepared.real.mkdir()
    return prepared


def run(hospitals, **resources) -> dict:
    changed = hospitals.scenario.resources.model_copy(update=resources)
    run_federation(
        hospitals.grid,
        hospitals.scenario.model_copy(update={"resources": changed}),
        hospitals.real,
        "",
    )
    return json.loads((hospitals.real / "summary.json").read_text())


@pytest.mark.slow
def test_misnamed_and_unlisted_nodes_are_named_and_left_out_before_anyone_pays(hospitals) -> None:
    first, second, *_ = names = list(hospitals.scenario.sites)
    hospitals.grid.names |= {1: second, 2: first}
    said = f"{first}, {second} did not .*its site file calls it {first}.*no privacy was spent"
    with pytest.raises(UserError, match=said):
        run(hospitals)
    hospitals.grid.names |= {1: "visitor", 2: second}
    assert allowed_nodes(hospitals.grid, names, only_registered=True) == list(
        range(2, len(names) + 1)
    )
    assert "visitor: it is no site" in " ".join(
        map(sentence, unlisted_nodes(hospitals.grid, names))
    )
    assert not hospitals.asked("train")
    summary = run(hospitals, start_nodes=len(names) - 1)
    assert hospitals.asked("train")
    assert f"{first} took no part: no node of this name joined the run" in summary["warnings"]
    assert summary["data"] == "each site's own records"


@pytest.mark.slow
def test_site_that_refused_for_good_is_asked_again_in_a_resumed_run(hospitals) -> None:
    files = sorted((hospitals.folder / SITES_FOLDER).glob("*.toml"))
    for changed, most, end in (
        (files, 1.0, UserError),
        (files[1:], 4.0, Cut),
        (files[:1], 4.0, None),
    ):
        for path in changed:
            path.write_text(
                re.sub(r"max_run_epsilon = \S+", f"max_run_epsilon = {most}", path.read_text())
            )
        hospitals.spoil(Mock(side_effect=Cut), rounds=(2,) if end else ())
        with pytest.raises(end) if end else nullcontext():
            summary = run(hospitals)
    first, *others = [row["statuses"] for row in summary["participation"]]
    assert (first, {*map(tuple, others)}) == (["REFUSED", "OK"], {("OK", "OK")})
    # While another process has the folder nothing is written, not even that this one was refused.
    before = (hospitals.real / "events.jsonl").read_bytes()
    config = {"scenario": "digits", "output-dir": str(hospitals.real), "wait": 1.0}
    with folder_lock(hospitals.real), pytest.raises(UserError, match="another process works on"):
        app(hospitals.grid, Context(1, 1, {}, RecordDict(), config))
    assert (hospitals.real / "events.jsonl").read_bytes() == before


def test_node_without_a_registered_name_takes_no_part(hospitals) -> None:
    names = list(hospitals.scenario.sites)
    del hospitals.grid.names[1]
    assert 1 not in allowed_nodes(hospitals.grid, names, only_registered=True)
    assert 1 in allowed_nodes(hospitals.grid, names, only_registered=False)
    with pytest.raises(UserError, match="1 node without a registered name"):
        wait_for_sites(hospitals.grid, hospitals.scenario, 0, lambda missing: None)


def test_late_site_is_waited_for_and_one_that_does_not_come_is_named(
    hospitals, monkeypatch
) -> None:
    whole, said = dict(hospitals.grid.names), []
    *_, last = hospitals.scenario.sites
    hospitals.grid._nodes = list(whole)[:-1]

    def pause(seconds: float) -> None:
        if len(said) == 1:
            hospitals.grid._nodes = list(whole)

    monkeypatch.setattr(registered_nodes.time, "sleep", pause)
    wait_for_sites(hospitals.grid, hospitals.scenario, 60, said.append)
    assert said == [[last]]
    hospitals.grid._nodes = list(whole)[:-1]
    with pytest.raises(UserError, match=f"missing: {last}: have their nodes started"):
        wait_for_sites(hospitals.grid, hospitals.scenario, 0, said.append)
    fewer = hospitals.scenario.resources.model_copy(update={"start_nodes": len(whole) - 1})
    wait_for_sites(
        hospitals.grid, hospitals.scenario.model_copy(update={"resources": fewer}), 0, said.append
    )


def test_schema_tells_order_constants_and_labels_apart_and_not_whose_records_they_are() -> None:
    source = Table(
        path="a.csv",
        label="y",
        classes=2,
        features=("a", "b"),
        centers=(0, 1),
        class_names=("no", "yes"),
    )
    schema = record_schema(source)

    def differences(**changes) -> list[str]:
        return schema.differences(
            record_schema(Table.model_validate(source.model_dump() | changes))
        )

    assert (
        differences(
            path="b.csv", site_column="hospital", unit_column="patient", group_columns=("sex",)
        )
        == []
    )
    assert differences(features=("b", "a")) == ["features"]
    assert differences(categories={"sex": ("f", "m")}) == ["features"]
    assert differences(centers=(1, 0)) == differences(scales=(1, 2)) == ["constants"]
    assert differences(missing={"a": 1.0}) == ["features", "constants"]
    assert differences(class_names=("yes", "no")) == ["labels"]
