"""Traces of the chains: at the site, and nowhere else."""

import csv
import json

import numpy as np
import pytest

TRACES = "simulation.traces=true"


def replies_of(run) -> list:
    kept = []

    def keep(request, reply):
        arrays = {
            name: array.numpy().tobytes() for name, array in reply.content.get("arrays", {}).items()
        }
        record = json.loads(reply.content["config"]["record"])
        # A ledger's chain holds times, so its head differs from run to run.
        record.pop("ledger_head", None)
        assert reply.content.keys() <= {"config", "arrays", "metrics"}
        assert reply.content["config"].keys() == {"record"}
        metrics = dict(reply.content.get("metrics", {}))
        kept.append((run.site_of(request), request.metadata.message_type, record, arrays, metrics))
        return reply

    run.grid.change = keep
    run.run()
    return kept


@pytest.mark.slow
def test_trace_changes_no_reply_and_stays_in_its_folder(federation) -> None:
    traced, plain = federation(TRACES, name="traced"), federation(name="plain")
    first = replies_of(traced)
    assert len(first) > 10
    assert first == replies_of(plain)
    assert not (plain.folder / "traces").exists()
    written = {
        path.relative_to(traced.folder / "traces").parts[0]
        for path in traced.folder.rglob("traces/*/*.csv")
    }
    assert written == {"north", "south", "east", "west"}
    elsewhere = [
        path for path in traced.folder.rglob("*") if path.is_file() and "traces" not in path.parts
    ]
    assert not any("log_posterior" in path.read_text(errors="ignore") for path in elsewhere)


@pytest.mark.slow
def test_trace_has_a_row_per_step_and_the_posterior_rises(federation) -> None:
    # Without noise and with every record in each batch, so that each step must raise it.
    length = "training={rounds=2, steps_per_round=10, burn_in=2, thinning=2}"
    sampler = 'sampler={kind="sgd", step_size={kind="constant", initial=0.05}}'
    run = federation(TRACES, length, sampler, "privacy={sampling_rate=1.0}").run()
    first, second = sorted((run.folder / "traces" / "north").glob("*.csv"))
    rows = [
        row for path in (first, second) for row in csv.DictReader(path.read_text().splitlines())
    ]
    assert [int(row["step"]) for row in rows] == list(range(20))
    assert first.stem.split("-")[1] == "1"
    within = [
        [float(row["log_posterior"]) for row in rows[start : start + 10]] for start in (0, 10)
    ]
    assert all(np.all(np.diff(values) > 0) for values in within)
    assert {float(row["clipped_fraction"]) for row in rows} == {0.0}


@pytest.mark.parametrize("folder", [None, "traces", "blocked"])
def test_site_file_decides_and_a_trace_that_cannot_be_written_costs_no_reply(
    table_site, folder
) -> None:
    site = table_site(str(folder))
    site.write(
        [(str(number), number / 10, -number / 20, number % 2) for number in range(50)],
        trace_folder=folder,
    )
    (site.folder / "blocked").write_text("a file, no folder")
    reply = site.train()
    assert "arrays" in reply.content
    expected = [] if folder != "traces" else [f"{'ab' * 16}-1.csv"]
    assert [path.name for path in site.folder.rglob("*-1.csv")] == expected
    assert (site.folder / "traces").exists() == (folder == "traces")
