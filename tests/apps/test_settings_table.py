"""What the report says was run."""

from fl_dpbayes.scenario import load_scenario
from server.settings_table import settings_table

PARTS = {"Model", "Features", "Sampler", "Step size", "Prior", "Length", "Privacy", "Noise", "Clipping", "Batches",
         "Aggregation", "Recalibration"}  # fmt: skip


def settings(*overrides: str) -> dict[str, str]:
    return {row["name"]: row["value"] for row in settings_table(load_scenario("quickstart", overrides))}


def test_every_part_is_named_with_its_settings() -> None:
    rows = settings(
        "sampler.kind=dp-sghmc", "sampler.friction=0.25", "training.chains=3", "privacy.clipping.kind=automatic",
        "model={kind='mlp', hidden=[32, 16], features={kind='scattering', projection={}}}",
        "recalibration={epsilon=2.0}",
    )  # fmt: skip
    assert rows.keys() == PARTS
    assert rows["Sampler"] == "dp-sghmc, friction 0.25"
    assert rows["Length"].startswith("3 chains per site: their costs add up to one account; each 10 rounds x 20 steps")
    assert rows["Clipping"] == "automatic, stability 0.01, clip norm 3"
    assert rows["Noise"] == "coupling floor, temperature 1, noise multiplier solved from epsilon at each site"
    assert rows["Model"] == "mlp, hidden 32 - 16"
    assert rows["Features"].startswith("scattering, scales 2, angles 8, projection (strokes, dimensions 200")
    assert rows["Aggregation"].startswith("fald, site weights units")
    assert "epsilon 2 on units kept from training" in rows["Recalibration"]
    assert rows["Privacy"] == "epsilon 4 at delta 0.001 for each site"


def test_run_without_privacy_says_so() -> None:
    rows = settings("privacy={kind='none', sampling_rate=0.5}", "sampler.kind=sgld", "recalibration={}")
    assert rows["Privacy"] == "none: epsilon is infinite"
    assert rows["Noise"] == rows["Clipping"] == "none"
    assert "not private" in rows["Recalibration"]
