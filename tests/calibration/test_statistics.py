import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from fl_dpbayes.calibration.bins import CELLS, FINE_BIN_OF_CELL, FIRST_CELL
from fl_dpbayes.calibration.statistics import CalibrationStatistics, from_batch
from fl_dpbayes.calibration.sums import sparse
from fl_dpbayes.outcomes.classification import class_sums
from tests.counted import empty, merge

SCALARS = CalibrationStatistics.numbers()


def with_parts(seed, count, classes):
    """Make predictions of two members, whose disagreement is the epistemic part, and a truth."""
    generator = np.random.default_rng(seed)
    members = generator.dirichlet(np.full(classes, 0.5), (2, count))
    mean = members.mean(axis=0)
    entropies = [-(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1) for p in (mean, members)]
    total = entropies[0]
    aleatoric = entropies[1].mean(axis=0)
    parts = {"epistemic": np.maximum(total - aleatoric, 0), "aleatoric": aleatoric, "total": total}
    truth = generator.dirichlet(np.ones(classes), count)
    return mean, generator.integers(0, classes, count), parts | {"truth": truth}


def counted(predictions, chosen):
    probabilities, labels, parts = predictions
    return from_batch(
        probabilities[chosen],
        labels[chosen],
        **{name: values[chosen] for name, values in parts.items()},
    )


def assert_same(first, second, tolerance=1e-12):
    assert first.classes == second.classes
    for name, array in first.arrays().items():
        np.testing.assert_allclose(array, second.arrays()[name], rtol=tolerance, atol=tolerance)


SEEDS = st.integers(0, 10_000)
SIZES = st.integers(0, 40)
SURE = np.concatenate([np.linspace(-36, -9, 50), np.linspace(9, 36, 50)])
CLASSES = st.sampled_from([2, 3, 5, 10])


@pytest.mark.slow
@given(SEEDS, SIZES, SIZES, SIZES, CLASSES)
def test_merge_property_associative_commutative_neutral_equal_to_pooled_in_any_order_and_read_back(
    seed, a, b, c, classes
):
    predictions = with_parts(seed, a + b + c, classes)
    cuts = [slice(0, a), slice(a, a + b), slice(a + b, a + b + c)]
    one, two, three = (counted(predictions, cut) for cut in cuts)
    assert_same(merge(merge(one, two), three), merge(one, merge(two, three)))
    assert_same(merge(one, two), merge(two, one), tolerance=0)
    assert_same(merge(one, empty(classes)), one, tolerance=0)
    pooled = counted(predictions, slice(None))
    assert_same(merge(merge(one, two), three), pooled)
    assert_same(pooled, counted(predictions, np.random.default_rng(seed).permutation(a + b + c)))
    assert_same(class_sums(classes).read(pooled.arrays()), pooled, tolerance=0)
    kept = sparse(pooled)
    assert_same(kept.dense(), pooled, tolerance=0)
    # At most what its records touch, whatever the number of cells.
    assert len(kept.places) <= len(SCALARS) + (a + b + c) * (5 * (1 + classes) + 3)
    assert pooled.truth_count == pooled.count


@pytest.mark.parametrize(
    ("probabilities", "labels", "right"),
    [
        (np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [0.9, 0.1]]) * (1 - 9e-7), [0, 0, 1, 1], 3),
        pytest.param(np.full((3, 1000), 1e-3), [0, 1, 999], 1, marks=pytest.mark.slow),
        (np.column_stack([expit(-SURE), expit(SURE)]) * (1 - 9e-7), SURE > 0, len(SURE)),
        (np.column_stack([expit(-20 * SURE), expit(20 * SURE)]), SURE > 0, len(SURE)),
    ],
    ids=["rows that sum to one only roughly", "a thousand classes", "nearly sure", "sure"],
)
def test_round_trip_limit(probabilities, labels, right):
    statistics = from_batch(probabilities, labels)
    read = class_sums(probabilities.shape[1]).read(statistics.arrays())
    assert (read.count, read.correct) == (len(labels), right)


def test_scalars_by_hand():
    statistics = from_batch([[0.8, 0.2], [0.3, 0.7], [1.0, 0.0]], [0, 0, 1])
    assert (statistics.count, statistics.correct) == (3, 1)
    assert [from_batch(HALVES, [label]).correct for label in (0, 1)] == [
        1,
        0,
    ]  # ties go to the first class
    losses = [-math.log(0.8), -math.log(0.3), -math.log(1e-12)]
    assert statistics.nll == pytest.approx(sum(losses))
    assert statistics.nll_squared == pytest.approx(sum(loss**2 for loss in losses))
    assert statistics.nll_clipped == 1
    assert statistics.brier == pytest.approx(2 * (0.04 + 0.49 + 1))
    assert statistics.brier_squared == pytest.approx(4 * (0.04**2 + 0.49**2 + 1))


def test_uncertainty_is_summed_and_one_sample_has_no_epistemic_part():
    statistics = from_batch(
        [[0.5, 0.5]] * 2, [0, 1], epistemic=[0.3, 0.1], aleatoric=[0.3, 0.5], total=[0.6, 0.6]
    )
    assert (statistics.epistemic, statistics.aleatoric, statistics.total) == pytest.approx(
        (0.4, 0.8, 1.2)
    )
    statistics = from_batch([[0.5, 0.5], [1.0, 0.0]], [0, 0])
    assert statistics.epistemic == 0
    assert statistics.aleatoric == statistics.total == pytest.approx(math.log(2))


def test_uncertainty_is_counted_by_its_share_of_ln_c():
    width = math.log(3) / 960
    total = np.array([20.5 * width, 100.5 * width, math.log(3) + 1e-7])
    epistemic = np.array([0.0, 1e-6 * width, 30.5 * width])
    statistics = from_batch(
        np.full((3, 3), 1 / 3),
        [0, 1, 2],
        epistemic=epistemic,
        aleatoric=total - epistemic,
        total=total,
    )
    filled = [np.flatnonzero(row) for row in statistics.uncertainty]
    assert [FINE_BIN_OF_CELL[cells].tolist() for cells in filled] == [[0, 0, 30], [20, 100, 959]]
    assert [cells[-1] for cells in filled] == [FIRST_CELL[30], CELLS - 1]
    assert class_sums(3).read(statistics.arrays()).count == 3


def test_truth_is_that_of_the_predicted_class():
    statistics = from_batch([[0.8, 0.2], [0.3, 0.7]], [1, 1], truth=[[0.6, 0.4], [0.9, 0.1]])
    assert statistics.truth[FIRST_CELL[768]] == pytest.approx(0.6)
    assert statistics.truth[FIRST_CELL[672]] == pytest.approx(0.1)
    assert statistics.truth_count == 2
    unknown = from_batch([[0.8, 0.2]], [1])
    assert unknown.truth_count == 0
    assert not unknown.truth.any()


HALVES = [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("probabilities", "labels", "parts", "complaint"),
    [
        ([[0.5, math.nan]], [0], {}, "NaN"),
        ([[1.2, -0.2]], [0], {}, "softmax"),
        ([[0.2, 0.9]], [0], {}, "to 1.1"),
        ([0.2, 0.8], [0, 1], {}, "shape"),
        ([[1.0]], [0], {}, "2 or more classes"),
        (HALVES, [0, 1], {}, "one per row"),
        *((HALVES, [label], {}, "not a class") for label in (2, -1, 0.5)),
        (HALVES, [0], {"truth": [[0.5, 0.6]]}, "sums to 1.1"),
        (HALVES, [0], {"truth": [[0.2, 0.3, 0.5]]}, "expected"),
        (HALVES, [0], {"truth": [[1.2, -0.2]]}, "must lie"),
        (HALVES, [0], {"truth": [0.5]}, "shape"),
    ],
)
def test_bad_predictions_and_truths_are_refused(probabilities, labels, parts, complaint):
    with pytest.raises(ValueError, match=complaint):
        from_batch(probabilities, labels, **parts)


# More than the tables hold, a fraction, losses below 0 and above the clip, squares that no losses
# give, more clipped than the loss allows, a Brier score that the tables do not give, entropies that
# are above log C, do not add up or are below 0; truths that are more than the records, negative,
# half a one, or none's.
OF_SCALARS = [
    ("count", 1),
    ("count", 0.5),
    ("correct", 1),
    ("nll", -1e6),
    ("nll", 1e6),
    ("nll_squared", -1e6),
    ("nll_squared", 1e9),
    ("nll_clipped", 40),
    ("brier", 0.1),
    ("brier_squared", 1e6),
    ("total", 1e6),
    ("epistemic", 0.1),
    ("aleatoric", -1e6),
    *(("truth_count", change) for change in (1, -51, -0.5, -50)),
]
# Counts of one cell, of one class, negative; sums outside of their bin; outcomes above the count;
# uncertain records that are more than all, halves, or fewer than none; truth above the count or
# negative.
OF_CELLS = [
    ("top_label", (CELLS - 1, 0), 1),
    ("top_label", (CELLS - 1, 0), -1e3),
    ("class_wise", (1, 0, 0), 1),
    ("top_label", (CELLS - 1, 1), 1),
    ("class_wise", (0, 10, 3), 5),
    ("class_wise", (1, 10, 4), 5),
    ("top_label", (700, 2), 5),
    ("uncertainty", (0, 0), 1),
    ("uncertainty", (1, slice(500, 502)), 0.5),
    ("uncertainty", (0, slice(0, 2)), np.array([1, -1])),
    ("truth", 900, 60),
    ("truth", 900, -60),
]


@pytest.mark.parametrize(
    ("table", "place", "change"),
    [*(("scalars", SCALARS.index(name), change) for name, change in OF_SCALARS), *OF_CELLS],
)
def test_forged_sums_are_refused(table, place, change):
    arrays = counted(with_parts(3, 50, 3), slice(None)).arrays()
    arrays[table][place] += change
    with pytest.raises(ValueError, match="cannot come from records"):
        class_sums(3).read(arrays)


@pytest.mark.parametrize(("row", "cell"), [(0, 900), (1, 959)])
def test_uncertainty_beyond_or_below_its_histogram_is_refused(row, cell):
    arrays = counted(with_parts(3, 50, 3), slice(None)).arrays()
    arrays["uncertainty"][row] = 50 * np.eye(CELLS)[cell]
    with pytest.raises(ValueError, match="does not follow from its histogram"):
        class_sums(3).read(arrays)


def test_top_label_confidence_below_chance_is_refused():
    arrays = from_batch([[0.6, 0.4]], [0]).arrays()
    arrays["top_label"][FIRST_CELL[100]] = [1, 0.1045, 1, 0.1045**2, 0.1045]
    arrays["top_label"][FIRST_CELL[576]] = 0
    with pytest.raises(ValueError, match="below 1/2"):
        class_sums(2).read(arrays)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("times", [0.9, 1.2])
def test_loss_that_the_probabilities_of_the_labels_do_not_give_is_refused(power, times):
    arrays = counted(with_parts(3, 50, 3), slice(None)).arrays()
    first = SCALARS.index("nll")
    second = SCALARS.index("nll_squared")
    arrays["scalars"][first] *= times if power == 1 else 1
    arrays["scalars"][second] *= times**power
    with pytest.raises(ValueError, match=r"nll(_squared)? does not follow from class_wise"):
        class_sums(3).read(arrays)
