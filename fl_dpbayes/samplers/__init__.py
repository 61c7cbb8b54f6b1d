"""One algorithm per file, the chain that runs it, and the sum of clipped gradients.

What comes in: a module, a site's records, planned steps and generators. What goes out: posterior
samples, and how many steps were taken.
"""

from fl_dpbayes.samplers.algorithm import Algorithm, build_algorithm
from fl_dpbayes.samplers.chain import ChainDivergedError, run_chain
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.samplers.gradients.pass_shape import Workload, checked_gradient_shape, wanted_rows
from fl_dpbayes.samplers.local_trace import LocalTrace, log_likelihood_estimate
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords
from fl_dpbayes.samplers.state_vectors import ChainState, initial_vectors, state_arrays, to_state
