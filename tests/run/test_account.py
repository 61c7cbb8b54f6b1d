import io
import json

import numpy as np
from rich.console import Console

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.privacy.account import account
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.planned_noise import solve_noise
from fl_dpbayes.run.account import account_json, account_table, solve_json, solve_table


def shown(table: object) -> str:
    Console(width=200, file=(file := io.StringIO())).print(table)
    return file.getvalue()


def test_account_json_has_the_agreed_keys_and_spells_infinity() -> None:
    result = account_json(account((GaussianEvent(0.0, 1.0, 1),), 1e-5))
    assert json.loads(json.dumps(result, allow_nan=False)) == {
        "delta": 1e-5, "adjacency": "add_or_remove_one", "mu": "inf", "mu_kind": "exact",
        "epsilon": {"pld": "inf", "rdp": "inf", "gdp": "inf"},
    }  # fmt: skip


def test_account_table_says_how_far_the_limit_under_reports() -> None:
    text = shown(account_table(account((GaussianEvent(1.0, 0.01, 1000),), 1e-5)))
    said = ("1.82827", "GDP (clt)", "under-reports against PLD by 11.5 %", "adding or removing one unit")
    assert [words for words in said if words not in text] == []
    exact = shown(account_table(account((GaussianEvent(5.0, 1.0, 50),), 1e-5, "replace_one")))
    assert [words in exact for words in ("GDP (exact)", "replacing one unit", "under-reports")] == [True, True, False]


def test_solved_noise_as_json_and_table() -> None:
    plan = PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=0.1)
    solved = solve_noise(plan, np.ones(10), 100)
    sigma, costs = solved.noise_multiplier, {"epsilon": solved.epsilon, "delta": 1e-5}
    assert solve_json(solved) == {"noise_multiplier": sigma, **costs, "history": [[sigma, 0.1, 10]]}
    assert f"{sigma:.6g}" in shown(solve_table(solved))
    langevin = solve_noise(plan.model_copy(update={"coupling": "langevin", "temperature": 1.0}), np.ones(10), 100)
    assert set(solve_json(langevin)) == {"temperature", "epsilon", "delta", "history"}
