"""The Flower ClientApp: a site's side of every message.

Flower sends the text of an exception to the server, that of a failed import too: all but Flower is
imported within the guard.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.guard import Noted, guarded

app = ClientApp()


@app.query()
@guarded
def query(message: Message, context: Context, noted: Noted) -> Message:
    """Say who the site is and in which role it takes part."""
    from clients.answer import show_card

    return show_card(message, context, noted)


@app.train()
@guarded
def train(message: Message, context: Context, noted: Noted) -> Message:
    """Run a stretch of the site's private chain."""
    from clients.answer import answer
    from clients.train import train_chain
    from fl_dpbayes.protocol.train import TrainRequest

    return answer(message, context, noted, request_type=TrainRequest, work=train_chain)


@app.train("recalibrate")
@guarded
def recalibrate(message: Message, context: Context, noted: Noted) -> Message:
    """Run a stretch of the private fit of a recalibration map."""
    from clients.answer import answer
    from clients.recalibrate import recalibrate_posterior
    from fl_dpbayes.protocol.recalibrate import RecalibrateRequest

    return answer(
        message, context, noted, request_type=RecalibrateRequest, work=recalibrate_posterior
    )


@app.evaluate()
@guarded
def evaluate(message: Message, context: Context, noted: Noted) -> Message:
    """Measure predictors on the site's test records."""
    from clients.answer import answer
    from clients.evaluate import evaluate_predictors
    from fl_dpbayes.protocol.evaluate import EvaluateRequest

    return answer(message, context, noted, request_type=EvaluateRequest, work=evaluate_predictors)
