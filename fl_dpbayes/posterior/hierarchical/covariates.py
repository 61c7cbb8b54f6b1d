"""Public covariates, over which clipped scores and event rates are averaged; no site's record is among them."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.rule import PublicInputs, SyntheticInputs
from fl_dpbayes.config.task import Model, StandardFeatures, Task
from fl_dpbayes.posterior.student import prepare_student


def public_covariates(public: PublicInputs, task: Task, model: Model) -> npt.NDArray[np.float64]:
    """Return what the model's layer sees of the declared public inputs, (N, D).

    Synthetic ones of a declared geometry are normal numbers of its spread: that is what the geometry says of records.
    Raises UserError as `prepare_student` does.
    """
    if isinstance(public, SyntheticInputs) and isinstance(model.features, StandardFeatures):
        drawn = np.random.default_rng(public.seed).standard_normal((public.count, len(model.features.centers)))
        return model.features.spread * drawn
    found = prepare_student(public, task, model, labelled=False).features
    return found.reshape(len(found), -1).astype(np.float64)
