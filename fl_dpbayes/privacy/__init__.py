"""What was done, and what it cost.

What comes in: events of noise and sampling. What goes out: epsilon, mu, solved noise, and a ledger
that never shows less than was spent.
"""

from fl_dpbayes.privacy.account import SMALL_DELTA, Account
from fl_dpbayes.privacy.check_statement import (
    checked_statement,
    largest_at_small_delta,
    reply_metrics,
)
from fl_dpbayes.privacy.events import (
    GaussianEvent,
    History,
    history_of_steps,
    joined,
    noise_of_steps,
    read_history,
    slice_history,
    write_history,
)
from fl_dpbayes.privacy.filter import Budget, filter_orders
from fl_dpbayes.privacy.gdp import gdp_mu
from fl_dpbayes.privacy.ledger.account import Spent, planned_epsilon, spent
from fl_dpbayes.privacy.ledger.cohort_creation import unit_sketch
from fl_dpbayes.privacy.ledger.decision import Refused
from fl_dpbayes.privacy.ledger.file import (
    Entry,
    LedgerError,
    LedgerPlaceError,
    cohorts_of,
)
from fl_dpbayes.privacy.ledger.ledger import CohortChangedError, Ledger, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import (
    PARTS,
    Cohort,
    DataVersion,
    LedgerState,
    Part,
    Reservation,
    Spending,
    read_state,
)
from fl_dpbayes.privacy.ledger.witness import RENEWED, LedgerPlace, repair_witness
from fl_dpbayes.privacy.planned_noise import (
    NOISE_TOLERANCE,
    PlannedStretch,
    SolvedNoise,
    chain_of_history,
    largest_prefix,
    planned_chain,
    planned_stretch,
    solve_multiplier,
    solve_noise,
    solve_plan,
)
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.second_run import price_of_second_run
from fl_dpbayes.privacy.splits import parts_of_units, split_name, unit_scores
from fl_dpbayes.privacy.streams import Streams
