"""Is a training reply what was asked for? Checked before anything of it is used."""

from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Message

from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix
from fl_dpbayes.protocol.card import Card
from fl_dpbayes.protocol.precision import decode_samples, encoded_layout
from fl_dpbayes.protocol.request_digest import request_digest
from fl_dpbayes.protocol.sampler import state_shapes
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from fl_dpbayes.schedules.planned import planned_step_sizes
from server.messages import read_arrays

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-9, 1e9


@dataclass(frozen=True)
class CheckedReply:
    """A reply that matches its request: its samples, its last state, and the public facts beside them."""

    samples: PosteriorSamples
    last: Arrays
    last_step: int
    last_step_size: float
    temperature: float

    def without_arrays(self) -> "CheckedReply":
        """Drop the samples and the last state, which the bank holds on disk."""
        empty = PosteriorSamples(arrays={}, weights=np.zeros(0), temperatures=np.zeros(0))
        return replace(self, samples=empty, last={})


def check_train_reply(
    reply: Message, record: TrainReply, request: TrainRequest, card: Card, shapes: dict[str, tuple[int, ...]]
) -> CheckedReply:
    """Check a reply against its request and decode its arrays.

    Args:
        reply: the message.
        record: its validated record.
        request: what was asked.
        card: what the site declared.
        shapes: parameter name -> shape of the model.

    Returns:
        The samples with their weights and temperatures, and the last state.

    Raises:
        ValueError: naming the first difference; nothing of the reply may then be used.
    """
    if (record.run, record.round) != (request.run, request.round) or record.request != request_digest(request):
        raise ValueError("it answers another request")
    if record.privacy.units != card.units or record.privacy.delta != request.plan.privacy.delta:
        raise ValueError("its privacy statement does not fit the site's card or the request")
    if record.first_step != request.first_step or record.steps > request.steps:
        raise ValueError(f"it ran steps {record.first_step}+{record.steps}, not {request.first_step}+{request.steps}")
    if (record.status == "OK") != (record.steps == request.steps):
        raise ValueError(f"status {record.status} does not fit {record.steps} of {request.steps} steps")
    sizes = planned_step_sizes(request.plan)
    end = record.first_step + record.steps
    kept = tuple(step for step in range(record.first_step, end) if request.plan.is_kept(step))
    if record.sample_steps != kept:
        raise ValueError(f"it holds {len(record.sample_steps)} samples where the plan keeps {len(kept)}")
    if not np.allclose(record.sample_weights, sizes[list(kept)], rtol=1e-9, atol=0):
        raise ValueError("its sample weights are not the planned step sizes")
    _check_temperatures(record)
    layout = encoded_layout(shapes, len(kept), request.precision)
    expected = prefixed("last", state_shapes(request.plan.sampler, shapes))
    arrays = read_arrays(
        reply,
        expected | {name: shape for name, (shape, _) in layout.items()},
        dtypes={name: dtype for name, (_, dtype) in layout.items()},
    )
    return CheckedReply(
        samples=PosteriorSamples(
            arrays=decode_samples(arrays, request.precision),
            weights=np.asarray(record.sample_weights),
            temperatures=np.asarray(record.sample_temperatures),
        ),
        last=without_prefix("last", arrays),
        last_step=end - 1,
        last_step_size=float(sizes[end - 1]),
        temperature=record.temperature_mean,
    )


def _check_temperatures(record: TrainReply) -> None:
    # Rules divide by them: one site's made-up value must not decide the posterior of all.
    stated = {record.temperature_low, record.temperature_mean, record.temperature_high, *record.sample_temperatures}
    if any(value != 0 and not LEAST_TEMPERATURE <= value <= MOST_TEMPERATURE for value in stated):
        raise ValueError(f"a temperature lies outside [{LEAST_TEMPERATURE:g}, {MOST_TEMPERATURE:g}]")
    if any(not record.temperature_low <= value <= record.temperature_high for value in record.sample_temperatures):
        raise ValueError("a sample's temperature lies outside the range that the reply states")
