"""A ClientApp of one's own that takes the private chain alone."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import PRIVACY, ROUNDS, SAMPLER, SITES, make_net, records

import fl_dpbayes as fl

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run the next steps of this site's chain from the state that the message carries."""
    # The position in the plan is this node's own: a server that asks for a round again gets the
    # next steps, or none.
    position = context.state.setdefault("chain", ConfigRecord())
    chain = fl.PrivateChain(
        make_net(),
        records(int(context.node_config["partition-id"])),
        PRIVACY,
        position=position,
        rounds=ROUNDS,
        steps_per_round=20,
        sampler=SAMPLER,
        prior_share=1 / SITES,
    )
    release = chain.advance(message.content.array_records["arrays"])
    state = ArrayRecord({name: Array(array) for name, array in release.last.items()})
    return Message(
        RecordDict({"arrays": state, "metrics": MetricRecord(release.metrics)}), reply_to=message
    )
