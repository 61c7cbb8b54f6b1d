"""What an audit says nothing about: the list that it ends with, one sentence for each."""

from fl_dpbayes.audit.noise import MOST_CHAINS
from fl_dpbayes.audit.plans import private_settings
from fl_dpbayes.config import Scenario

# Of every scenario.
ALWAYS = (
    "the account itself: that epsilon follows from noise, rate and number of steps (its "
    "own tests do)",
    "faults smaller than those in the column 'finds', and faults in requests of "
    "other kinds than these",
    "what looks like noise to all who lack a key: numbers of a keyed generator, or "
    "hidden in last bits",
    "where noise comes from: that its key is of the operating system (a seed repeats all of it)",
    "single units that join more often than others: who joins is counted in groups of units",
    "steps of the scenario's own plan between those asked for: early, middle and late, "
    "alone and 8 together",
    "rounding at other batch sizes and start states than these, and on a GPU",
    "when and how fast a reply is sent, its time stamps, and how long it lives",
    "how slow a reply says that passes over records are: it is measured, on made-up rows",
    "the ledger across crashes and restores, the server, and the network",
    "the ledger's head in a reply, a hash that is another one at each site",
    "refusals, but for one of a wrong delta: their codes are fixed; when they come is not tested",
    "exact sums of test records that a site declares public, and of subgroups of them",
    "tables of predictors other than the posterior, recalibrated and corrected ones too",
    "the last bits of recalibration parameters and of a new hospital's releases",
    "what `update` prints and writes at the hospital: read is what its ledger keeps as released",
    "what stays at the site: its audit log, its local trace, its ledger's file, its "
    "snapshot, its logs",
    "who joins and what weights are drawn, as numbers: batches are tested by their sizes",
)
PRE_NOISE = "pre-noise where sums are read (it is on where one unit's length is measured)"
DRAWN = "samples drawn from the released state; layers below the last where sums are read"
MOMENTS = (
    "the last bits of what a released state holds beside the vector that sums are read "
    "from: momentum, or moments"
)
RESCALED = (
    "steps of one request apart, and the last bits of states: "
    "a state of this sampler does not show them"
)


def not_looked_at(scenario: Scenario) -> list[str]:
    """List what an audit of the scenario says nothing about.

    Args:
        scenario: That is audited.

    Returns:
        One sentence for each subject.
    """
    chains = scenario.training.chains
    sentences = list(ALWAYS)
    if chains > MOST_CHAINS:
        sentences.append(f"all but {MOST_CHAINS} of {chains} chains")
    if private_settings(scenario).pre_noise > 0:
        sentences.append(PRE_NOISE)
    if scenario.sampler.draws_samples:
        sentences.append(DRAWN)
    if scenario.sampler.moments:
        sentences.append(MOMENTS)
    if scenario.sampler.rescales:
        sentences.append(RESCALED)
    return sentences
