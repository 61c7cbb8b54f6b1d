"""Is a training reply what was asked for? Checked before anything of it is used."""

from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Message

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.sampler import state_shapes
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.privacy.check_statement import checked_statement
from fl_dpbayes.privacy.planned_stretch import PlannedStretch, planned_stretch
from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.request_digest import request_digest
from fl_dpbayes.protocol.train import PrivacyStatement, TrainReply, TrainRequest
from server.messages import read_arrays


@dataclass(frozen=True)
class CheckedReply:
    """A reply that matches its request: its samples, its last state, its cost, and the stretch as the plan has it."""

    samples: PosteriorSamples
    last: Arrays
    last_step: int
    stretch: PlannedStretch
    privacy: PrivacyStatement

    def without_arrays(self) -> "CheckedReply":
        """Drop the samples and the last state, which the bank holds on disk."""
        empty = PosteriorSamples(arrays={}, weights=np.zeros(0), temperatures=np.zeros(0))
        return replace(self, samples=empty, last={})


def check_train_reply(
    reply: Message,
    record: TrainReply,
    request: TrainRequest,
    card: SiteCard,
    shapes: dict[str, tuple[int, ...]],
    previous: PrivacyStatement | None,
) -> CheckedReply:
    """Check a reply against its request and decode its arrays.

    Args:
        reply: the message.
        record: its validated record.
        request: what was asked.
        card: what the site declared.
        shapes: parameter name -> shape of the model.
        previous: the last accepted statement of the site's spending in this run.

    Returns:
        The samples with the weights and temperatures that the plan gives them, and the last state.

    Raises:
        ValueError: naming the first difference; nothing of the reply may then be used.
    """
    if (record.run, record.round) != (request.run, request.round) or record.request != request_digest(request):
        raise ValueError("it answers another request")
    if record.privacy.units != card.units or record.privacy.adjacency != request.plan.privacy.adjacency:
        raise ValueError("its privacy statement does not fit the site's card or the request")
    if record.first_step != request.first_step or record.steps > request.steps:
        raise ValueError(f"it ran steps {record.first_step}+{record.steps}, not {request.first_step}+{request.steps}")
    if (record.status == "OK") != (record.steps == request.steps):
        raise ValueError(f"status {record.status} does not fit {record.steps} of {request.steps} steps")
    try:
        stretch = planned_stretch(request.plan, card.units, record.first_step, record.steps)
    except UserError:
        raise ValueError("no noise meets the plan's budget at its size: no step of it can have run") from None
    privacy = checked_statement(record.privacy, stretch.history, stretch.reached, previous, request.plan.privacy.delta)
    kept = len(stretch.weights)
    samples = {name: (kept, *shape) for name, shape in shapes.items()} if kept else {}
    arrays = read_arrays(
        reply, prefixed("samples", samples) | prefixed("last", state_shapes(request.plan.sampler, shapes))
    )
    return CheckedReply(
        samples=PosteriorSamples(
            arrays=_finite(without_prefix("samples", arrays)),
            weights=stretch.weights,
            temperatures=stretch.temperatures,
        ),
        last=without_prefix("last", arrays),
        last_step=record.first_step + record.steps - 1,
        stretch=stretch,
        privacy=privacy,
    )


def _finite(samples: Arrays) -> Arrays:
    for name, array in samples.items():
        if not np.isfinite(array).all():
            raise ValueError(f"array {name!r} has a value that is not finite")
    return samples
