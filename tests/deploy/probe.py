"""A ServerApp that asks every node who it is, and writes down what comes back: whatever the run's bundle, it asks."""

import json
import time
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    nodes: list[int] = []
    while len(nodes) < int(context.run_config["nodes"]):
        nodes = list(grid.get_node_ids())
        time.sleep(0.2)
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    found = [
        {"code": reply.error.code, "reason": reply.error.reason}
        if reply.has_error()
        else {key: str(value) for key, value in reply.content["config"].items()}
        for reply in grid.send_and_receive(asked, timeout=120)
    ]
    output = Path(str(context.run_config["output"]))
    output.with_suffix(".new").write_text(json.dumps(found))
    output.with_suffix(".new").rename(output)
