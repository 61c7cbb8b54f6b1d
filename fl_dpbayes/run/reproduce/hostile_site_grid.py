"""An in-process federation of which one node answers training as an attack says, and all else honestly."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import Array, Message
from flwr.clientapp import ClientApp
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site import load_site
from fl_dpbayes.protocol.arrays import without_prefix
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import read_header
from fl_dpbayes.run.inline_grid import InlineGrid
from fl_dpbayes.run.reproduce.hostile_site_attacks import View, with_trace_of_noise

Attack = Callable[[View], npt.NDArray[np.float64]]

# Where a plan has no bound, an attack goes this far: a thousand times the prior's standard deviation.
UNBOUNDED = 1e3


class HostileGrid(InlineGrid):
    """Nodes 1 .. K of linear models, of which one lets its honest app answer and puts an attack's states in the reply.

    Everything but the states stays as the honest app wrote it: card, statement, steps, weights.
    """

    def __init__(self, client_app: ClientApp, nodes: int, site_file: Path, attack: Attack) -> None:
        """Take the first node for the hostile one; `site_file` is its own."""
        super().__init__(client_app, nodes)
        self._site_file, self._attack = site_file, attack

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        hostile = message.metadata.dst_node_id == 1 and message.metadata.message_type == "train"
        if hostile and not reply.has_error() and "arrays" in reply.content:
            self._spoil(message, reply)
        return reply

    def _spoil(self, message: Message, reply: Message) -> None:
        from server.check_reply import reachable

        request = read_header(TrainRequest, message.content.config_records["config"]["record"])
        record = read_header(TrainReply, reply.content.config_records["config"]["record"])
        sent = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
        arrays = reply.content.array_records["arrays"]
        start = without_prefix("start", sent)
        bound = reachable(request, record.privacy.units, start, record.steps)
        farthest = np.full(record.steps, UNBOUNDED) if bound is None else bound[:, 0]
        kept = [step for step in range(record.steps) if request.plan.is_kept(record.first_step + step)]
        shapes = {name: array.shape for name, array in without_prefix("parameters", start).items()}
        last = np.concatenate([arrays[f"last/parameters/{name}"].numpy().ravel() for name in shapes])
        # A reply without samples has no arrays of them.
        drawn = [arrays[f"samples/{name}"].numpy().reshape(len(kept), -1) for name in shapes if kept]
        right, wrong = (np.concatenate([fit[name.split(".")[-1]] for name in shapes]) for fit in self._fitted)
        view = View(
            start=np.concatenate([start[f"parameters/{name}"].ravel() for name in shapes]).astype(np.float64),
            right=right,
            wrong=wrong,
            honest=np.vstack([*([np.concatenate(drawn, axis=1)] if kept else []), last]).astype(np.float64),
            farthest=farthest[[*kept, record.steps - 1]],
        )
        states = with_trace_of_noise(self._attack(view), view).astype(np.float32)
        column = 0
        for name, shape in shapes.items():
            part = states[:, column : column + int(np.prod(shape))]
            column += part.shape[1]
            if kept:
                arrays[f"samples/{name}"] = Array(np.ascontiguousarray(part[:-1].reshape(len(kept), *shape)))
            arrays[f"last/parameters/{name}"] = Array(np.ascontiguousarray(part[-1].reshape(shape)))

    @cached_property
    def _fitted(self) -> tuple[dict[str, npt.NDArray], dict[str, npt.NDArray]]:
        """Fit the model of the right labels and that of the wrong ones, without noise, to the site's own records."""
        site = load_site(read_site_file(self._site_file))
        assert site.train is not None
        features = site.train.features.reshape(len(site.train.labels), -1)
        fits = [
            LogisticRegression(max_iter=1000).fit(features, (site.train.labels + shift) % site.task.classes)
            for shift in (0, 1)
        ]
        right, wrong = ({"weight": fit.coef_.ravel(), "bias": fit.intercept_} for fit in fits)
        return right, wrong
