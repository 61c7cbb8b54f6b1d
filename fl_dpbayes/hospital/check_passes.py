"""Says before a run how many records a site's machine computes at a time.

It tries records of the site's shape that are made up.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from clients.own_site import compute_device
from fl_dpbayes.config import LogisticModel, SiteFile
from fl_dpbayes.hospital.findings import Finding, failed, passed, warned
from fl_dpbayes.models import (
    PassShape,
    RowsDependError,
    build_model,
    product_library,
    reproducible_branch,
)
from fl_dpbayes.models.processor import processor
from fl_dpbayes.outcomes import outcome_of
from fl_dpbayes.samplers import Workload, checked_gradient_shape, wanted_rows

# Of a usual plan.
BATCH_SIZE = 256


def pass_findings(path: Path, site_file: SiteFile) -> Iterator[Finding]:
    """Say how many records of a linear model a pass holds here.

    Args:
        path: The site file.
        site_file: What it says.

    Yields:
        A warning where a pass holds one record, with what that costs; a failure where not even so
        the records' last digits are their own.
    """
    torch.set_num_threads(site_file.threads)
    task = site_file.source.task
    device = compute_device(site_file)
    module = build_model(LogisticModel(), task, 0, None).to(device)
    rows = wanted_rows(module, "book_keeping", BATCH_SIZE)
    workload = Workload(
        module=module,
        way="book_keeping",
        input_shape=task.input_shape,
        target_type=torch.from_numpy(np.empty(0, task.outcome.target_type)).dtype,
        loss=outcome_of(task.outcome).loss,
    )
    try:
        shape = checked_gradient_shape(workload, rows)
    except RowsDependError as error:
        yield failed("arithmetic", str(error))
    else:
        yield finding_of(shape, device)


def finding_of(shape: PassShape, device: torch.device) -> Finding:
    """Say in one sentence how many records a pass holds, and what that costs where it is one.

    Args:
        shape: Of the passes over records on this machine.
        device: Which computes them.

    Returns:
        A warning where records are computed one at a time.
    """
    computed_by = f"{processor(device)}, {product_library()}, reproducible: {reproducible_branch()}"
    if not shape.one_by_one:
        return passed(
            "arithmetic",
            f"{shape.rows} records of a linear model at a time, {shape.products} products "
            f"({computed_by})",
        )
    return warned(
        "arithmetic",
        "records are computed one at a time here, as a record's last digits would else depend on "
        f"other records: that takes about {shape.slower:.2g} times as long ({computed_by})",
        "take another processor, or set MKL_CBWR=COMPATIBLE before Python starts",
    )
