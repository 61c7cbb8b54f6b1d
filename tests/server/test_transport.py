"""Samples rounded for transport, through the whole federation; replies too large to be stored."""

import csv

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site_ledger import cohort_of, ledger_place
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.privacy.ledger.ledger import Ledger
from fl_dpbayes.protocol.precision import decode_samples, encode_samples

MIXTURE = "aggregation={rule='mixture'}"


@pytest.mark.parametrize(("precision", "bits"), [("float32", 32), ("bfloat16", 16), ("int8", 8)])
def test_posterior_is_rounded_and_its_bytes_are_counted(federation, precision, bits) -> None:
    run = federation(MIXTURE, f"transport.precision={precision}")
    run.run()
    found = load_posterior(run.folder / "posterior.safetensors").samples
    for name, array in decode_samples(encode_samples(found.arrays, precision), precision).items():
        np.testing.assert_allclose(array, found.arrays[name], rtol=1e-6)
    coarser = decode_samples(encode_samples(found.arrays, "int8"), "int8")
    kept = all(np.allclose(array, found.arrays[name], rtol=1e-6) for name, array in coarser.items())
    assert kept == (precision == "int8")
    with (run.folder / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    parameters, sites = 650, 4
    sent = sum(int(row["samples_kept"]) for row in rows) * parameters * bits / 8
    states = len(rows) * sites * parameters * 4
    headers = 150 * 6 * sites * len(rows)
    assert sent + states < sum(int(row["bytes_up"]) for row in rows) < sent + states + headers


@pytest.mark.parametrize("change", ["type", "scale", "missing"])
def test_reply_of_another_encoding_is_rejected(federation, change) -> None:
    run = federation(MIXTURE, "transport.precision=int8")

    def hostile(request, reply):
        if request.metadata.message_type == "train" and run.site_of(request) == "north":
            record = dict(reply.content.array_records["arrays"])
            name = next((name for name in record if name.startswith("scales/")), None)
            if name is not None:
                samples = name.replace("scales/", "samples/")
                if change == "type":
                    record[samples] = Array(record[samples].numpy().astype(np.float32))
                elif change == "scale":
                    record[name] = Array(np.full_like(record[name].numpy(), np.nan))
                else:
                    del record[name]
            reply.content["arrays"] = ArrayRecord(record)
        return reply

    run.grid.change = hostile
    run.run()
    with (run.folder / "privacy.csv").open() as file:
        rows = list(csv.DictReader(file))
    # Its first round keeps one sample, so no round of it is good.
    spoilt = {row["status"] for row in rows if row["site"] == "north"}
    assert spoilt
    assert spoilt <= {"FAILED", "REJECTED"}
    assert {row["status"] for row in rows if row["site"] == "south"} == {"OK"}


def test_precision_that_has_nothing_to_round_is_refused() -> None:
    with pytest.raises(UserError, match=r"with aggregation\.rule 'fald' sites send only last states"):
        load_scenario("quickstart", ["transport.precision=int8"])


def test_round_too_large_for_a_message_is_refused_before_anything_is_spent(federation) -> None:
    run = federation(
        MIXTURE,
        "model={kind='mlp', hidden=[1000, 1000]}",
        "training={rounds=1, steps_per_round=200, thinning=1}",
    )
    with pytest.raises(UserError, match=r"would hold 8\d\d MiB .*raise training\.thinning"):
        run.run()
    assert not any(request.metadata.message_type == "train" for request in run.grid.requests)


def test_site_refuses_a_round_too_large_for_its_ledger(federation, monkeypatch) -> None:
    monkeypatch.setattr("server.check_size.MAX_REPLY_BYTES", 10**12)
    monkeypatch.setattr("clients.policy.MAX_REPLY_BYTES", 10_000)
    run = federation(MIXTURE, "training={rounds=1, steps_per_round=8, thinning=2}")
    with pytest.raises(UserError, match=r"BAD_REQUEST plan\.thinning"):
        run.run()
    for path in (run.folder / "sites").glob("*.toml"):
        site_file = read_site_file(path)
        with Ledger.open(ledger_place(site_file.ledger), cohort_of(site_file)) as ledger:
            assert ledger.rows() == []
