"""What a client of Flower does: it says which client it is, and trains on its images."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federation.line import client_round
from federation.messages import line_of

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer with the number of this client."""
    own = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(RecordDict({"own": own}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the network of the message, and answer with an update; the residual stays in the state of the client."""
    line, number = line_of(message)
    (packet,) = message.content["packet"].to_numpy_ndarrays()
    kept = context.state.get("residual")
    reply, count, residual = client_round(
        line,
        int(context.node_config["partition-id"]),
        number,
        packet,
        None if kept is None else kept.to_numpy_ndarrays(),
    )
    if residual is not None:
        context.state["residual"] = ArrayRecord([np.asarray(array) for array in residual])
    content = {"packet": ArrayRecord([reply]), "metrics": MetricRecord({"images": count})}
    return Message(RecordDict(content), reply_to=message)
