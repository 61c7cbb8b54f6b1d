"""A made-up site is named where it decides what is pooled, at two sites already."""

import numpy as np

from fl_dpbayes.calibration.bins import REPORT_BINS, coarsen
from fl_dpbayes.calibration.federation.counts import decisive_sites
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.report.warnings import sentence


def site(count: int, accuracy: float, seed: int, noise_std: float = 0.0) -> NoisedTable:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, count)
    statistics = from_batch(
        np.column_stack([confidence, 1 - confidence]), (generator.random(count) >= accuracy).astype(np.int64)
    )
    sums = coarsen(statistics.top_label, REPORT_BINS)[:, :SENT_COLUMNS]
    return NoisedTable(sums + noise_std * generator.standard_normal(sums.shape), noise_std)


def test_one_made_up_site_of_two_or_three_is_named() -> None:
    honest, made_up = site(250, 0.42, 0), site(250_000, 0.9999, 1)
    for tables in (
        {"honest": honest, "made-up": made_up},
        {"honest": honest, "other": site(250, 0.45, 2), "made-up": made_up},
    ):
        sentences = list(map(sentence, decisive_sites("shifted", tables)))
        assert len(sentences) == 2
        assert all(text.startswith("made-up decides what is pooled over the") for text in sentences)
        assert "accuracy is 0.999" in sentences[0]
        assert "without it" in sentences[0]


def test_noised_sums_are_held_against_each_other_too() -> None:
    tables = {"honest": site(2000, 0.42, 0, 5.0), "made-up": site(100_000, 0.999, 1, 5.0)}
    assert any("made-up decides" in text for text in map(sentence, decisive_sites("held_out", tables)))
    assert not decisive_sites("held_out", {"a": site(2000, 0.75, 0, 5.0), "b": site(2000, 0.75, 1, 5.0)})


def test_sites_alike_are_hardly_ever_named_and_a_single_one_never() -> None:
    named = 0
    for seed in range(40):
        alike = {name: site(250, 0.75, 10 * seed + number) for number, name in enumerate("abc")}
        named += bool(decisive_sites("held_out", alike)) + bool(
            decisive_sites("held_out", {"a": alike["a"], "b": alike["b"]})
        )
    # Of 80 federations; the metrics of one in 20 at most may differ so much by chance.
    assert named <= 4
    assert decisive_sites("held_out", {"a": site(250, 0.75, 0)}) == []
