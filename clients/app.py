"""The Flower ClientApp: a site's side of every message."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import clients
from clients.evaluate import evaluate_predictors
from clients.messages import guarded, read_request, reply_message
from clients.own_site import card_of, site_file_of
from clients.recalibrate import recalibrate_posterior
from clients.train import train_chain
from fl_dpbayes.config.kinds import check_origin
from fl_dpbayes.protocol.evaluate import EvaluateRequest
from fl_dpbayes.protocol.recalibrate import RecalibrateRequest
from fl_dpbayes.protocol.train import TrainRequest

app = ClientApp()


@app.query()
@guarded
def query(message: Message, context: Context) -> Message:
    """Say who the site is and in which role it takes part."""
    check_origin(clients)
    return reply_message(message, card_of(site_file_of(message, context)), {})


@app.train()
@guarded
def train(message: Message, context: Context) -> Message:
    """Run a stretch of the site's private chain and release its samples."""
    site_file = site_file_of(message, context)
    torch.set_num_threads(site_file.threads)
    reply, arrays = train_chain(site_file, read_request(message, TrainRequest), message)
    return reply_message(message, reply, arrays)


@app.train("recalibrate")
@guarded
def recalibrate(message: Message, context: Context) -> Message:
    """Fit a recalibration map to the posterior on records kept for that, and release its parameters."""
    site_file = site_file_of(message, context)
    torch.set_num_threads(site_file.threads)
    reply, arrays = recalibrate_posterior(site_file, read_request(message, RecalibrateRequest), message)
    return reply_message(message, reply, arrays)


@app.evaluate()
@guarded
def evaluate(message: Message, context: Context) -> Message:
    """Measure predictors on the site's test records and release additive statistics, if the site allows it."""
    site_file = site_file_of(message, context)
    torch.set_num_threads(site_file.threads)
    reply, arrays = evaluate_predictors(site_file, read_request(message, EvaluateRequest), message)
    return reply_message(message, reply, arrays)
