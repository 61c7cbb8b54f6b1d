"""A trace of a site's own chain, written to a file at the site and to nowhere else."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from torch import nn

from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.data.site import SiteSplit
from fl_dpbayes.models.priors import Cavity
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.samplers.local_trace import LocalTrace, log_likelihood_estimate
from fl_dpbayes.samplers.minibatch import TrainingRecords

MOST_RECORDS = 500
# Which records a trace looks at stays at the site; they are the same in every round, so that rounds can be compared.
RECORDS_SEED = 0
log = logging.getLogger("fl_dpbayes")


@contextmanager
def local_trace(
    site_file: SiteFile, request: TrainRequest, part: SiteSplit, module: nn.Module, cavity: Cavity | None
) -> Iterator[LocalTrace | None]:
    """Trace the chain that runs while the context lasts, where the site file names a folder for it.

    The table `<run>-<round>.csv` is written at the end, and where the chain fails as well: one that diverged needs it
    most. It is computed from records without noise; nothing of it enters a reply.

    Args:
        site_file: the site.
        request: what is asked; its plan has sampler, prior and prior share.
        part: the training records, as the model takes them.
        module: the plain model.
        cavity: the prior where the request carries it.

    Yields:
        What `run_chain` is to call after each step; None without a folder.
    """
    folder = site_file.trace_folder
    if folder is None:
        yield None
        return
    likelihood = log_likelihood_estimate(
        module,
        TrainingRecords(part.features, part.labels, part.unit_index),
        MOST_RECORDS,
        np.random.default_rng(RECORDS_SEED),
    )
    trace = LocalTrace(request.plan, likelihood, cavity)
    try:
        yield trace
    finally:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            trace.write_csv(folder / f"{request.run}-{request.round}.csv")
        except OSError as error:
            # The chain's privacy is spent: its reply must not be lost for want of a trace.
            log.warning("the trace of round %s cannot be written to %s: %s", request.round, folder, error)
