"""Subgroups of test records: counted at the site, checked by the server, sent if public."""

import math

import numpy as np
import pytest
from flwr.app import Array
from pydantic import ValidationError

from clients.evaluate import count_predictions
from clients.subgroups import measured_groups
from fl_dpbayes.calibration.federation.evaluation import Evaluation, Place
from fl_dpbayes.calibration.federation.subgroups import read_subgroups, subgroup_sets
from fl_dpbayes.calibration.noised_counts import CODE, COUNT_BINS
from fl_dpbayes.calibration.statistics import entropies, from_batch
from fl_dpbayes.config.outcome import Classification
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.site import SiteSplit
from fl_dpbayes.outcomes import outcome_of
from fl_dpbayes.outcomes.classification import class_sums
from fl_dpbayes.posterior import Prediction
from fl_dpbayes.protocol.evaluate import EvaluateReply, EvaluateRequest
from tests.asking import SOURCE, evaluate, record_of, refusal_of
from tests.counted import CARD, merge

SEX = np.array(["female", "male", "male", "female", "male", "male"])
PREDICTED = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.5, 0.5], [1.0, 0.0]])
LABELS = np.array([0, 1, 1, 0, 0, 0])


def part(**changes) -> SiteSplit:
    keys = {"truth": np.full((6, 2), 0.5), "groups": {"sex": SEX}} | changes
    return SiteSplit(np.zeros((6, 2), np.float32), LABELS, np.arange(6), 6, **keys)


def request(classes=2) -> EvaluateRequest:
    return EvaluateRequest(
        run="cd" * 16,
        round=1,
        task=Task(input_shape=(2,), classes=classes),
        model={"kind": "logistic"},
        predictors={"last": (1.0,), "posterior": (0.5, 0.5)},
        arrays="0" * 64,
        delta=1e-3,
    )


TWO = outcome_of(Classification(classes=2))


def bytes_of(classes: int) -> int:
    """The size of the tables of one subgroup, of two predictors."""
    return 2 * outcome_of(Classification(classes=classes)).sums.nbytes


def counted_of(chosen, **changes):
    """Count the predictions of `last` of all records, and of each subgroup."""
    entropy = entropies(PREDICTED)
    prediction = Prediction(PREDICTED, total=entropy, aleatoric=entropy, epistemic=0 * entropy)
    counted = count_predictions(TWO, prediction, part(**changes), chosen)
    return {f"{place}last": sums for place, sums in counted.items()}


def test_subgroups_add_up_to_the_whole_with_their_truth() -> None:
    groups, left_out = measured_groups({"sex": SEX}, bytes_of(2))
    assert (groups, left_out) == ((("sex", "female"), ("sex", "male")), 0)
    counted = counted_of(groups)
    assert list(counted) == ["last", "group-0/last", "group-1/last"]
    female = from_batch(
        PREDICTED[SEX == "female"], LABELS[SEX == "female"], truth=np.full((2, 2), 0.5)
    )
    for name, array in counted["group-0/last"].arrays().items():
        np.testing.assert_array_equal(array, female.arrays()[name])
    for name, array in merge(counted["group-0/last"], counted["group-1/last"]).arrays().items():
        np.testing.assert_allclose(array, counted["last"].arrays()[name], rtol=1e-12, atol=1e-12)


def test_attributes_that_do_not_fit_into_a_reply_are_left_out_whole() -> None:
    wide = np.array([str(number) for number in range(19)])
    assert measured_groups({"sex": SEX, "wide": wide}, bytes_of(2))[1] == 19
    assert len(measured_groups({"wide": wide, "sex": SEX}, bytes_of(2))[0]) == 19
    # 1,000 classes: 74 MiB for each subgroup.
    assert measured_groups({"sex": SEX}, bytes_of(1000)) == ((), 2)


def arrays_of(counted) -> dict:
    tables = {key: statistics.arrays() for key, statistics in counted.items()}
    return {
        f"{key}/{name}": array for key, of_one in tables.items() for name, array in of_one.items()
    }


def test_more_records_in_subgroups_than_in_all_are_refused() -> None:
    groups = (("sex", "female"), ("sex", "male"), ("age", "old"))
    people = {"sex": SEX, "age": np.full(6, "old")}
    counted = counted_of(groups, groups=people)
    whole = {"last": counted["last"]}
    assert len(read_subgroups(CARD, groups, arrays_of(counted), whole, TWO.sums)) == 3
    twice = counted | {"group-0/last": counted["group-1/last"]}
    with pytest.raises(ValueError, match="subgroups of 'sex' add up to more"):
        read_subgroups(CARD, groups, arrays_of(twice), whole, TWO.sums)
    forged = arrays_of(counted)
    forged["group-2/last/truth"] = forged["group-2/last/truth"] + 5
    with pytest.raises(ValueError, match="cannot come from records"):
        read_subgroups(CARD, groups, forged, whole, TWO.sums)


def test_subgroups_are_pooled_over_the_sites_that_have_them() -> None:
    parts = []
    for name, people in (("north", SEX), ("south", np.full(6, "male"))):
        groups, _ = measured_groups({"sex": people}, bytes_of(2))
        counted = counted_of(groups, groups={"sex": people})
        card = CARD.model_copy(update={"name": name})
        parts += read_subgroups(
            card, groups, arrays_of(counted), {"last": counted["last"]}, TWO.sums
        )
    every = subgroup_sets(parts, ("held_out", "train"))
    found = [(part.site, part.group[1], int(part.statistics.count)) for part in every]
    assert found == [
        ("pooled:held_out", "female", 2),
        ("pooled:held_out", "male", 10),
        ("north", "female", 2),
        ("north", "male", 4),
        ("south", "male", 6),
    ]


def noised_reply(groups, noise_std: float) -> EvaluateReply:
    """A reply whose privacy statement nobody looks at here."""
    fields = {"release": "noised", "noise_std": noise_std, "groups": groups}
    return EvaluateReply.model_construct(**(REPLY | fields))


def noised_arrays(groups, noise_std: float, seed: int) -> dict[str, np.ndarray]:
    """Released counts of 300 records of one bin, 100 of them in each of the groups."""
    generator = np.random.default_rng(seed)
    arrays = {}
    records = {"": 300} | {f"group-{k}/": 100 for k in range(len(groups))}
    for place, count in records.items():
        counts = np.zeros((COUNT_BINS, 2))
        counts[12] = [0.75 * count, 0.25 * count]
        for predictor in ("last", "posterior"):
            noise = noise_std * generator.standard_normal(counts.shape)
            arrays[f"{place}{predictor}/noised"] = CODE @ counts + noise
    return arrays


def read_noised(evaluation: Evaluation, name: str, groups, arrays, noise_std: float) -> None:
    card = CARD.model_copy(update={"evaluation_release": "noised", "name": name, "units": 300})
    asked = request().model_copy(update={"noise_multiplier": 0.5})

    def read(shapes):
        assert {key: array.shape for key, array in arrays.items()} == shapes
        return arrays

    evaluation.add(card, asked, noised_reply(groups, noise_std), read)


GROUPS = (("sex", "female"), ("sex", "male"), ("age", "old"))
# A record is counted in three tables: among all, by sex and by age.
JOINT = 0.5 * math.sqrt(3)


def test_noised_subgroups_are_read_and_pooled_with_their_noise() -> None:
    evaluation = Evaluation(form=TWO.sums)
    for seed, name in enumerate(("north", "south")):
        read_noised(evaluation, name, GROUPS, noised_arrays(GROUPS, JOINT, seed), JOINT)
    rows = {(row.site, row.value, row.predictor): row for row in evaluation.subgroup_rows()}
    assert len(rows) == 3 * 3 * 2
    pooled_row = rows["pooled:held_out", "female", "posterior"]
    assert pooled_row.noised
    assert abs(pooled_row.n - 200) < 4 * math.sqrt(2) * JOINT * 2.7
    low, high = pooled_row.intervals["accuracy"]
    assert low < 0.75 < high
    # Two sites' records tell more than those of one.
    one = rows["north", "female", "posterior"].intervals["accuracy"]
    assert high - low < one[1] - one[0]


def test_noised_subgroups_of_too_little_noise_or_of_more_records_than_there_are_are_refused() -> (
    None
):
    evaluation = Evaluation(form=TWO.sums)
    with pytest.raises(ValueError, match="states noise"):
        read_noised(evaluation, "north", GROUPS, noised_arrays(GROUPS, 0.5, 0), 0.5)
    arrays = noised_arrays(GROUPS, JOINT, 0)
    arrays["group-1/last/noised"] = arrays["group-1/last/noised"] * 1e5
    with pytest.raises(ValueError, match="a sum is"):
        read_noised(evaluation, "north", GROUPS, arrays, JOINT)
    assert evaluation.subgroup_rows() == []


def test_a_site_cannot_name_attributes_without_end_to_state_more_noise() -> None:
    groups = tuple((f"attribute {number}", "yes") for number in range(6))
    noise_std = 0.5 * math.sqrt(7)
    with pytest.raises(ValueError, match="of 6 attributes, at most 5 are counted"):
        read_noised(
            Evaluation(form=TWO.sums),
            "north",
            groups,
            noised_arrays(groups, noise_std, 0),
            noise_std,
        )


REPLY = {"run": "cd" * 16, "round": 1, "request": "0" * 64, "release": "public"}


@pytest.mark.parametrize(
    "groups",
    [
        [["sex", "x" * 61]],
        [["sex", ""]],
        [["sex", "a\u202eb"]],
        [["sex", "a\nb"]],
        [["sex"]],
        [["a", str(number)] for number in range(21)],
        [["sex", "male"], ["sex", "male"]],
    ],
)
def test_hostile_names_are_refused(groups) -> None:
    EvaluateReply.model_validate({**REPLY, "groups": [["sex", "male"]]})
    with pytest.raises(ValidationError):
        EvaluateReply.model_validate({**REPLY, "groups": groups})


POLICY = {"max_run_epsilon": 4.0, "groups": {"sick": ["0", "1"]}}


@pytest.mark.parametrize("release", ["public", "noised", "none"])
def test_subgroups_leave_exactly_with_noise_or_not_at_all_as_the_sums_do(
    table_site, release
) -> None:
    site = table_site()
    rows = [(f"p{number}", float(number % 2), 1.0, number % 2) for number in range(40)]
    source = SOURCE | {"group_columns": ["sick"]}
    policy = POLICY | {"evaluation_release": release}
    site.write(rows, role="held_out", source=source, policy=policy)
    reply = evaluate(site)
    if release == "none":
        assert refusal_of(reply)[0] == "NOT_SENT"
        return
    record = record_of(reply)
    names = set(reply.content["arrays"])
    if release == "noised":
        # All that the policy declares, and the others, whatever the records are.
        assert record["groups"] == [["sick", value] for value in ("0", "1", "other")]
        assert names == {"last/noised", *(f"group-{number}/last/noised" for number in range(3))}
        # A record is counted among all, and in one subgroup.
        assert record["noise_std"] == pytest.approx(2.0 * math.sqrt(2))
        return
    assert record["groups"] == [["sick", "0"], ["sick", "1"]]
    assert {"last/top_label", "group-0/last/top_label", "group-1/last/uncertainty"} < names
    assert reply.content["arrays"]["group-0/last/scalars"].numpy()[0] == 20


@pytest.fixture
def table_run(federation, tmp_path):
    """A federation of three sites on a table with a column of sexes.

    The label depends on one feature.
    """
    generator = np.random.default_rng(1)
    lines = ["a,b,sick,sex"]
    for _ in range(400):
        a, b = generator.normal(size=2)
        lines.append(
            f"{a},{b},{int(a + 0.5 * generator.normal() > 0)},"
            f"{generator.choice(['female', 'male'])}"
        )
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return federation(
        f"data.source={{kind='table', path='{tmp_path / 't.csv'}', label='sick', classes=2, "
        "features=['a', 'b'], "
        "group_columns=['sex']}",
        "sites={north={role='train'}, south={role='train'}, out={role='held_out', records=100}}",
        "partition={kind='iid'}",
        "model={kind='logistic'}",
    )


def test_a_run_measures_subgroups_and_shift(table_run) -> None:
    summary = table_run.run().summary()
    rows = {(row["site"], row["value"], row["predictor"]): row for row in summary["subgroups"]}
    whole = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    for place in ("pooled:train", "pooled:held_out", "north", "south", "out"):
        parts = [rows[place, value, "posterior"] for value in ("female", "male")]
        assert sum(row["n"] for row in parts) == whole[place, "posterior"]["n"]
        right = sum(row["n"] * row["accuracy"] for row in parts)
        assert right == pytest.approx(
            whole[place, "posterior"]["n"] * whole[place, "posterior"]["accuracy"]
        )
        assert {row["attribute"] for row in parts} == {"sex"}
    diagrams = {(row["site"], row["predictor"]): row["bins"] for row in summary["reliability"]}
    roles = ("pooled:held_out", "pooled:train")
    pooled = [(role, name) for role in roles for name in ("last", "posterior")]
    assert set(diagrams) == {*pooled, *((site, "posterior") for site in ("north", "south", "out"))}
    for key, bins in diagrams.items():
        assert sum(row["n"] for row in bins) == whole[key]["n"]
    found = [(row["site"], row["measure"]) for row in summary["shift_detection"]]
    assert found == [
        (site, measure) for site in ("pooled:held_out", "out") for measure in ("epistemic", "total")
    ]
    for row in summary["shift_detection"]:
        assert row["n"] == 100
        assert row["n_reference"] == whole["pooled:train", "posterior"]["n"]
        assert row["interval"][0] <= row["low"] <= row["auroc"] <= row["high"] <= row["interval"][1]


def test_a_hostile_site_cannot_add_subgroups_and_of_many_sites_few_get_diagrams(
    table_run, monkeypatch
) -> None:
    for most in ("MAX_RELIABILITY_SITES", "MAX_CURVE_SITES", "MOST_SHOWN"):
        monkeypatch.setattr(f"fl_dpbayes.calibration.federation.evaluation.{most}", 1)

    def change(reply):
        for name in [name for name in reply.content["arrays"] if name.startswith("group-0/")]:
            reply.content["arrays"][name] = Array(
                reply.content["arrays"][name.removeprefix("group-0/")].numpy()
            )
        return reply

    table_run.spoil(change, ["evaluate"])
    summary = table_run.run().summary()
    assert any(
        "south sent no evaluation: rejected: the subgroups of 'sex'" in text
        for text in summary["warnings"]
    )
    assert {row["site"] for row in summary["subgroups"]} == {
        "pooled:train",
        "pooled:held_out",
        "north",
        "out",
    }
    # More sites than a reader looks at.
    pooled = {"pooled:train", "pooled:held_out"}
    assert len({row["site"] for row in summary["reliability"]} - pooled) == 1
    assert {row["site"] for row in summary["calibration"] if row["net_benefit"]} == pooled


def test_subgroups_too_large_for_a_reply_are_refused_before_they_are_read() -> None:
    reply = EvaluateReply.model_validate({**REPLY, "groups": [["sex", "male"]]})
    with pytest.raises(ValueError, match="1 subgroups, whose tables are too large"):
        Evaluation(class_sums(1000)).add(CARD, request(classes=1000), reply, None)


def test_one_sample_has_no_epistemic_uncertainty_to_detect_a_shift_by(federation) -> None:
    run = federation(
        "training={rounds=1, steps_per_round=4, burn_in=2, thinning=2}",
        "aggregation={rule='fedavg'}",
    )
    for row in run.run().summary()["shift_detection"]:
        assert (row["auroc"] is None) == (row["measure"] == "epistemic")


def test_predictor_that_some_sites_lack_is_not_pooled() -> None:
    evaluation = Evaluation(class_sums(2))
    sums = from_batch(PREDICTED, LABELS)
    evaluation._samples = {"posterior": 5, "last": 1}
    measured = (("a", "posterior"), ("b", "posterior"), ("a", "last"))
    evaluation.places = [Place(site, "train", predictor, sums) for site, predictor in measured]
    rows = evaluation.calibration_rows()
    assert [row.predictor for row in rows if row.site == "pooled:train"] == ["posterior"]
