"""Code that a request names: allowed by a site's policy, and the same everywhere."""

import sys

import numpy as np
import pytest
from torch import nn

from fl_dpbayes.config.installed_code import installed_code
from fl_dpbayes.config.task import ModuleModel, Task
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.store import load_posterior, save_posterior
from tests.asking import ROWS, evaluate, record_of, refusal_of, rows_of

FACTORY = "tests.server.test_own_code:flat"
POLICY = {"max_run_epsilon": 4.0, "evaluation_release": "noised"}


def flat(inputs: int = 2, classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


@pytest.mark.slow
def test_site_imports_only_what_its_policy_lists(table_site) -> None:
    site, unlisted = table_site(), {"kind": "module", "factory": "antigravity:fly"}
    site.write(ROWS, policy=POLICY | {"allowed_code": [FACTORY]})
    for reply in (site.train(model=unlisted), evaluate(site, model=unlisted)):
        assert refusal_of(reply) == ("POLICY_DENIED", "model.factory")
    assert "antigravity" not in sys.modules
    assert rows_of(site.ledger()) == []
    for answer in (site.train, lambda **keys: evaluate(site, **keys)):
        assert refusal_of(answer(model={"kind": "module", "factory": FACTORY})) is None
        large = {"kind": "module", "factory": FACTORY, "settings": {"inputs": 10**12}}
        assert refusal_of(answer(model=large)) == ("POLICY_DENIED", "model")
    assert len(rows_of(site.ledger())) == 2
    assert record_of(site.answer("query"))["code"] == [installed_code(FACTORY).model_dump()]


@pytest.mark.slow
def test_site_with_other_code_or_none_is_left_out_in_words(federation) -> None:
    model = f"model={{kind='module', factory='{FACTORY}', settings={{inputs=64, classes=10}}}}"
    run = federation(model, "sampler.step_size.initial=0.01")

    def change(card: dict) -> None:
        other = card["code"][0] | {
            "distribution": "tumournet",
            "version": "1.0",
            "digest": "ab" * 32,
        }
        card["code"] = [other] if card["name"] == "north" else []

    run.spoil_record(change, ("query",), ("north", "south"))
    run.run()
    said = [text for text in run.warnings() if "did not join: " in text]
    assert any(
        "north has other code" in text and "tumournet 1.0 (SHA-256 abababababab)" in text
        for text in said
    )
    assert any("south does not allow" in text for text in said)
    assert {"north", "south"}.isdisjoint(row["name"] for row in run.summary()["sites"])
    assert [row["digest"] for row in run.summary()["code"]] == [installed_code(FACTORY).digest]


def test_digest_of_code_follows_its_files_and_reading_a_posterior_imports_nothing_unasked(
    tmp_path, monkeypatch
) -> None:
    package = tmp_path / "ownnet"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from torch import nn\n\ndef made():\n    return nn.Linear(2, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    first = installed_code("ownnet:made")
    samples = {"weight": [[[0.0, 0.0]] * 2], "bias": [[0.0, 0.0]]}

    arrays = {name: np.array(value, np.float32) for name, value in samples.items()}
    model, path = ModuleModel(factory="ownnet:made"), tmp_path / "p.safetensors"
    save_posterior(
        path,
        PosteriorSamples(arrays, np.ones(1), np.ones(1)),
        model,
        Task(input_shape=(2,), classes=2),
        "0",
    )
    with pytest.raises(
        Exception, match=r"--allow-code ownnet:made  \(Python: allowed_code=\['ownnet:made'\]"
    ):
        load_posterior(path)
    assert "ownnet" not in sys.modules
    assert load_posterior(path, ["ownnet:made"]).metadata.model == model
    (package / "__init__.py").write_text("made = None\n")
    assert installed_code("ownnet:made").digest != first.digest
    assert installed_code("nowhere:made") is None


def test_package_of_several_folders_is_digested_by_the_files_of_each(tmp_path, monkeypatch) -> None:
    # A namespace package, as that of two checkouts on the path.
    places = [tmp_path / checkout / "ownspace" for checkout in ("one", "two")]
    for place in places:
        place.mkdir(parents=True)
        (place / "net.py").write_text("made = None\n")
        monkeypatch.syspath_prepend(place.parent)
    digests = []
    for place in (None, *places):
        if place is not None:
            (place / "net.py").write_text(f"made = {len(digests)}\n")
        digests.append(installed_code("ownspace.net:made").digest)
    assert len({*digests}) == 3
