"""Posterior samples, their store, the rules that join them, prediction.

What comes in: what sites released. What goes out: one global posterior, levels of hospitals, and
class probabilities.
"""

from fl_dpbayes.posterior.alignment import state_warnings
from fl_dpbayes.posterior.arviz_chains import chains_to_arviz
from fl_dpbayes.posterior.averages import average_of_states, average_states, distance
from fl_dpbayes.posterior.chains import flatten_state
from fl_dpbayes.posterior.convergence import one_sample_warning
from fl_dpbayes.posterior.far_off import (
    SKETCH_SIZE,
    far_off_warnings,
    noise_of_mean,
    relative_distances,
    sketched_move,
)
from fl_dpbayes.posterior.hierarchical.distribution import REACH, Distribution, mixed
from fl_dpbayes.posterior.hierarchical.effects import (
    FACTS,
    HOSPITALS,
    POOLED_ROUNDS,
    UNKNOWN,
    Means,
    PooledRounds,
    log_odds_means,
    pooled_round,
    site_means,
    summed_round,
    with_round,
)
from fl_dpbayes.posterior.hierarchical.model import (
    HospitalModel,
    expected_effects,
    fit_hospitals,
    fit_log_odds,
    rate_in_words,
    with_intercept,
)
from fl_dpbayes.posterior.hierarchical.stored import check_sums, checked_rounds
from fl_dpbayes.posterior.predictive import (
    CLASS_PROBABILITIES,
    Prediction,
    PredictiveLaw,
    average_predictions,
    predict,
)
from fl_dpbayes.posterior.rules.combine import Aggregate, Released, combine_sites
from fl_dpbayes.posterior.rules.fald import DriftMeter, averaged_temperature, target_warnings
from fl_dpbayes.posterior.rules.mixture import joined
from fl_dpbayes.posterior.sample_file import check_seal
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.posterior.samples import (
    AnySamples,
    PerSite,
    PosteriorSamples,
    StoredSamples,
    concatenate,
    point_of,
)
from fl_dpbayes.posterior.site_weights import weigh_sites
from fl_dpbayes.posterior.store import (
    POSTERIOR_FILE,
    StoredPosterior,
    load_posterior,
    save_posterior,
)
from fl_dpbayes.posterior.student import prepare_student
from fl_dpbayes.posterior.weak_budget import weak_budget
