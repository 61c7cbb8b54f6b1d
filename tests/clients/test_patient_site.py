"""A table with a patient column, through the client: the patient is the unit of everything."""

from itertools import product

import numpy as np
import pytest
import torch
from flwr.app import Message

from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site import load_site
from tests.asking import record_of

PATIENTS, RECORDS = 50, 4


def rows_of(patients: int, seed: int = 0) -> list[tuple[str, float, float, int]]:
    draws = np.random.default_rng(seed).normal(size=(patients, RECORDS, 2))
    records = ((patient, x, y) for patient, own in enumerate(draws.tolist()) for x, y in own)
    return [(f"p{patient:03d}", x, y, int(x > 0)) for patient, x, y in records]


def last_of(reply: Message) -> np.ndarray:
    record_of(reply)
    parts = [
        reply.content["arrays"][f"last/parameters/1.{name}"].numpy().ravel()
        for name in ("weight", "bias")
    ]
    return np.concatenate(parts).astype(np.float64)


def in_training(site) -> set[str]:
    """Say which patients train, by a unique feature of each."""
    part = load_site(read_site_file(site.path)).train
    names = {np.float32(x): patient for patient, x, _, _ in site.rows}
    return {names[value] for value in part.features[:, 0]}


def written(site, rows, **changes):
    site.rows = rows
    site.write(rows, **changes)
    return site


def test_card_and_statement_count_patients_and_each_part_has_its_own_account(table_site) -> None:
    site = written(table_site(), rows_of(PATIENTS))
    card = record_of(site.answer("query"))
    statement = record_of(site.train())["privacy"]
    assert (
        (card["unit"], card["units"]) == (statement["unit"], statement["units"]) == ("patient", 40)
    )
    with site.ledger() as ledger:
        assert ledger.cohort.unit == "patient"
        assert (ledger.spent("train").steps, ledger.spent("test").steps) == (1, 0)


@pytest.mark.parametrize("far", [0.01, 1e4])
def test_patient_more_moves_the_released_sum_by_no_more_than_the_clip_norm(
    table_site, far: float
) -> None:
    rows = rows_of(PATIENTS)
    before = written(table_site("before"), rows)
    training = in_training(before)
    # A patient's records all pull the same way: clipped one by one they would move the sum by four
    # times as much.
    added = next(
        patient
        for patient in (f"q{number:03d}" for number in range(99))
        if patient in in_training(written(table_site(patient), [*rows, (patient, far, far, 1)]))
    )
    after = written(
        table_site("after"), [*rows, *[(added, far + i / 1e3, far, 1) for i in range(RECORDS)]]
    )
    assert in_training(after) == training | {added}
    declared_batch = 1.0 * 40
    moved = (
        np.linalg.norm(last_of(after.train()) - last_of(before.train()))
        * declared_batch
        / before.STEP_SIZE
    )
    expected = min(before.CLIP_NORM, RECORDS * np.hypot(np.hypot(far, far), 1) * np.sqrt(2) / 2)
    assert moved == pytest.approx(expected, rel=0.01)
    assert moved <= before.CLIP_NORM * (1 + 1e-5)


def test_patients_join_batches_whole(table_site) -> None:
    # Every patient has one positive and one negative twin record: a whole patient's gradient at
    # zero is zero.
    twins = list(product(range(PATIENTS), (1, -1), (0, 1)))
    rows = [
        (f"p{patient:03d}", sign * (1.0 + patient), sign * 2.0, label)
        for patient, sign, label in twins
    ]
    site = written(table_site(), rows)
    quiet = {"sampling_rate": 0.5, "noise_multiplier": 1e-2, "epsilon": 1e9, "clip_norm": 1.0}
    place = {
        "path": "wide/north.sqlite",
        "witness": "wide witness/north.json",
        "cohort": "north 2026",
    }
    site.write(
        rows, policy={"max_run_epsilon": 1e9}, ledger=place | {"epsilon": 1e9, "delta": 1e-3}
    )
    noise_only = np.abs(last_of(site.train(privacy=quiet))).max() * (0.5 * 40) / site.STEP_SIZE
    assert noise_only < 0.06  # Half a patient would add 1.


def test_global_seeds_decide_nothing_and_training_leaves_their_generators_alone(table_site) -> None:
    released = []
    for name in ("one", "two"):
        site = written(table_site(name), rows_of(PATIENTS), insecure_seed=None)
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        before, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        released.append(last_of(site.train(privacy={"pre_noise": 0.1})))
        assert torch.equal(before, torch.get_rng_state())
        assert np.array_equal(legacy, np.random.get_state()[1])  # noqa: NPY002
    assert not np.isclose(released[0], released[1]).any()


def test_seed_of_the_site_file_is_stamped(table_site) -> None:
    for seed in (3, None):
        site = written(table_site(str(seed)), rows_of(PATIENTS), insecure_seed=seed)
        seeded = (
            record_of(site.answer("query"))["seeded"],
            record_of(site.train())["privacy"]["seeded"],
        )
        assert seeded == (seed == 3, seed == 3)
