"""A ServerApp of one's own that takes FALD alone."""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from task import ROUNDS, SITES, make_net, records

import fl_dpbayes as fl

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, write the posterior, and say how often its average is right on the held-out part."""
    strategy = fl.strategies.FALD(burn_in=2, min_train_nodes=SITES, fraction_evaluate=0.0)
    net, (features, labels) = make_net(), records(SITES)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if (posterior := strategy.posterior()) is None:
            return None
        chances = fl.predict_proba(net, posterior, features)
        return MetricRecord({"accuracy": float((chances.argmax(axis=1) == labels.numpy()).mean())})

    strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=ROUNDS, evaluate_fn=evaluate)
    place = Path(str(context.run_config["posterior"])).resolve()
    posterior = strategy.posterior()
    assert posterior is not None, "no round after burn-in had a reply that fits"
    np.savez(place, allow_pickle=False, **posterior.arrays)
    print(f"posterior samples: {place}")
