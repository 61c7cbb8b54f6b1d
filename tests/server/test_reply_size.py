"""Replies too large for a message or a ledger."""

import pytest

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site_ledger import cohort_of, ledger_place
from fl_dpbayes.privacy.ledger.ledger import Ledger

MIXTURE = "aggregation={rule='mixture'}"


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
    monkeypatch.setattr("server.check_reply.MAX_REPLY_BYTES", 10**12)
    monkeypatch.setattr("clients.policy.MAX_REPLY_BYTES", 10_000)
    run = federation(MIXTURE, "training={rounds=1, steps_per_round=8, thinning=2}")
    with pytest.raises(UserError, match=r"BAD_REQUEST plan\.thinning"):
        run.run()
    for path in (run.folder / "sites").glob("*.toml"):
        site_file = read_site_file(path)
        with Ledger.open(ledger_place(site_file.ledger), cohort_of(site_file)) as ledger:
            assert ledger.rows() == []
