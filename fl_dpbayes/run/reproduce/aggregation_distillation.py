"""Distillation in `aggregation`: one network imitates the mixture's predictions at made-up inputs."""

from dataclasses import dataclass
from typing import Literal

from fl_dpbayes.run.reproduce.aggregation_sites import Hospitals
from fl_dpbayes.run.reproduce.classification import probabilities_of

from fl_dpbayes.config.distillation import SyntheticInputs
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import logits_at, to_vector, vector_to_arrays
from fl_dpbayes.posterior.rules.distillation import Distilled, distil
from fl_dpbayes.posterior.samples import PosteriorSamples


@dataclass(frozen=True)
class DistillationSettings:
    """How many inputs are made up, and the bound on L-BFGS iterations."""

    inputs: int
    iterations: int


def distilled_mixture(
    hospitals: Hospitals,
    mixture: PosteriorSamples,
    pattern: Literal["noise", "strokes"],
    settings: DistillationSettings,
    seed: int,
) -> Distilled:
    """Fit one network of the sites' architecture to a mixture's predictions, as the server's strategy does.

    Args:
        hospitals: for task and model.
        mixture: the teacher.
        pattern: of the made-up inputs.
        settings: of inputs and fit.
        seed: of the inputs.

    Returns:
        The network and how far it is from its teacher at those inputs.
    """
    # Imported here: the server's side loads Flower, which only the methods that run need.
    from fl_dpbayes.posterior.server_inputs import server_inputs

    public = SyntheticInputs(pattern=pattern, count=settings.inputs, seed=seed)
    inputs = server_inputs(public, hospitals.task, hospitals.model, labelled=False).features
    module = build_model(hospitals.model, hospitals.task, seed=0)
    start = {name: array[0] for name, array in vector_to_arrays(to_vector(module)[None], module).items()}
    teacher = probabilities_of(module, mixture, inputs)
    return distil(logits_at(module, inputs), start, teacher, max_iterations=settings.iterations)
