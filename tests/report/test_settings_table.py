"""What the report says was run."""

from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.report.settings_table import settings_table
from fl_dpbayes.report.summary import AggregationInputs

PARTS = {
    "Predictors",
    "Missing values",
    "Model",
    "Features",
    "Sampler",
    "Step size",
    "Prior",
    "Length",
    "Privacy",
    "Noise",
    "Clipping",
    "Batches",
    "Aggregation",
    "Recalibration",
    "Taking part",
}


def settings(*overrides: str, inputs: AggregationInputs | None = None) -> dict[str, str]:
    return {
        row.name: row.value for row in settings_table(load_scenario("digits", overrides), inputs)
    }


def test_every_part_is_named_with_its_settings() -> None:
    rows = settings(
        "sampler.kind=dp-sghmc",
        "sampler.friction=0.25",
        "training.chains=3",
        "privacy.clipping.kind=automatic",
        "model={kind='mlp', hidden=[32, 16], features={kind='scattering', projection={}}}",
        "recalibration={epsilon=2.0}",
    )
    assert rows.keys() == PARTS
    assert rows["Sampler"] == "dp-sghmc, friction 0.25"
    assert rows["Length"].startswith(
        "3 chains per site: their costs add up to one account; each 10 rounds x 20 steps"
    )
    assert rows["Clipping"] == "automatic, stability 0.01, clip norm 3"
    assert (
        rows["Noise"]
        == "coupling floor, temperature 1, noise multiplier solved from epsilon at each site"
    )
    assert rows["Model"] == "mlp, hidden 32 - 16"
    assert rows["Features"].startswith(
        "scattering, scales 2, angles 8, projection (strokes, dimensions 200"
    )
    assert rows["Aggregation"].startswith("fald, site weights units")
    assert "epsilon 2 on units kept from training" in rows["Recalibration"]
    assert rows["Privacy"] == "epsilon 4 at delta 0.001 for each site"


def test_run_without_privacy_says_so() -> None:
    rows = settings("privacy={sampling_rate=0.5}", "sampler.kind=sgld", "recalibration={}")
    assert rows["Privacy"] == "none: epsilon is infinite"
    assert rows["Noise"] == rows["Clipping"] == "none"
    assert "not private" in rows["Recalibration"]


def test_resources_are_said() -> None:
    resources = ("resources.min_sites=2", "resources.start_nodes=4", "resources.silent_rounds=1")
    rows = settings("aggregation.rule=mixture", *resources)
    assert (
        rows["Taking part"]
        == "at least 2 sites in a round; begins with 4 nodes; not asked after 1 silent round"
    )
    plain = settings("aggregation.rule=mixture")
    assert plain["Taking part"].startswith(
        "more than half of the sites with steps left in a round; begins with 7 nodes; "
    )


def test_public_records_are_named_without_their_folder_and_counted_as_used() -> None:
    public = "public={kind='file', path='/secret/pub.npz', statement='published by its authors'}"
    said = settings(
        f"aggregation={{rule='distillation', {public}}}",
        inputs=AggregationInputs(kind="file", count=250),
    )["Aggregation"]
    assert said.startswith(
        'distillation, on 250 public records of pub.npz (see "This run"), iterations 500'
    )
    assert "secret" not in said
    made_up = (
        "aggregation={rule='predbayes', public={kind='synthetic', pattern='strokes', count=40}}"
    )
    assert settings(made_up)["Aggregation"].startswith(
        "predbayes, on 40 made-up inputs (strokes, seed 0)"
    )
