"""The Flower ClientApp: a site's side of every message."""

from collections.abc import Callable

import torch
from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp

import clients
from clients.evaluate import evaluate_predictors
from clients.messages import Handler, guarded, read_request, reply_message
from clients.own_site import card_of, site_file_of
from clients.pay import SentArrays
from clients.policy import check_code
from clients.recalibrate import recalibrate_posterior
from clients.train import train_chain
from fl_dpbayes.config.base import Config
from fl_dpbayes.config.kinds import check_origin
from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.privacy.check_statement import reply_metrics
from fl_dpbayes.privacy.planned_noise import planned_stretch
from fl_dpbayes.protocol.evaluate import EvaluateRequest
from fl_dpbayes.protocol.recalibrate import RecalibrateRequest
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import MessageT

app = ClientApp()


@app.query()
@guarded
def query(message: Message, context: Context) -> Message:
    """Say who the site is and in which role it takes part."""
    check_origin(clients)
    return reply_message(message, card_of(site_file_of(message, context)), {})


def _answer(kind: type[MessageT], work: Callable[[SiteFile, MessageT, Message], tuple[Config, SentArrays]]) -> Handler:
    @guarded
    def handler(message: Message, context: Context) -> Message:
        site_file = site_file_of(message, context)
        torch.set_num_threads(site_file.threads)
        request = read_request(message, kind)
        check_code(site_file, request)
        reply, arrays = work(site_file, request, message)
        answer = reply_message(message, reply, arrays)
        if isinstance(request, TrainRequest) and isinstance(reply, TrainReply):
            stretch = planned_stretch(request.plan, reply.privacy.units, reply.first_step, reply.steps)
            answer.content["metrics"] = MetricRecord({**reply_metrics(reply, stretch)})
        return answer

    return handler


app.train()(_answer(TrainRequest, train_chain))
app.train("recalibrate")(_answer(RecalibrateRequest, recalibrate_posterior))
app.evaluate()(_answer(EvaluateRequest, evaluate_predictors))
