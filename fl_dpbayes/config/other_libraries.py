"""Names of other libraries, and the key that is meant by one, or by a mistyped one."""

from collections.abc import Collection

from fl_dpbayes.config.names import near_hint

# Names of Opacus, of torch's optimizers, of Flower's strategies before its Message API -> ours.
OTHER_LIBRARIES = {
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "max_grad_norm": "clip_norm",
    "sample_rate": "sampling_rate",
    "batch_size": "sampling_rate",
    "epochs": "steps_per_round",
    "lr": "step_size",
    "learning_rate": "step_size",
    "fraction_fit": "fraction_train",
    "min_fit_clients": "min_train_nodes",
    "min_evaluate_clients": "min_evaluate_nodes",
    "min_available_clients": "min_available_nodes",
    "fit_metrics_aggregation_fn": "train_metrics_aggr_fn",
    "evaluate_metrics_aggregation_fn": "evaluate_metrics_aggr_fn",
}


def key_hint(key: str, allowed: Collection[str]) -> str:
    """Ask whether another key was meant, as the part of a sentence; empty if nobody can tell."""
    ours = OTHER_LIBRARIES.get(key, key)
    return near_hint(ours if ours in allowed else key, allowed)
