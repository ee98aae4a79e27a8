"""What the server of Flower does: it asks the nodes which client each is, and exchanges packets with them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from federation.line import Line
from federation.messages import config_of, line_from
from federation.rounds import Exchange, Reply, perform


def server_app(line: Line | None = None, folder: Path | None = None) -> ServerApp:
    """Return a server for a line; without one, the configuration of the run says the line and the folder."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        perform(
            line or line_from(config), exchange_by(grid, line or line_from(config)), folder or Path(config["folder"])
        )

    return made


def exchange_by(grid: Grid, line: Line) -> Exchange:
    """Return an exchange by the messages of Flower."""
    nodes: dict[int, int] = {}

    def exchange(chosen: Sequence[int], number: int, packet: np.ndarray) -> list[Reply]:
        nodes.update(nodes or nodes_of(grid, line.clients))
        content = RecordDict({"packet": ArrayRecord([packet]), "config": config_of(line, number)})
        messages = [Message(content, nodes[client], MessageType.TRAIN) for client in chosen]
        replies = {reply.metadata.src_node_id: content_of(reply) for reply in grid.send_and_receive(messages)}
        return [reply_of(replies[nodes[client]]) for client in chosen]

    return exchange


def nodes_of(grid: Grid, clients: int) -> dict[int, int]:
    """Return the node of Flower for each client, as the nodes themselves say; there must be as many as clients."""
    found = list(grid.get_node_ids())
    if len(found) != clients:
        raise ValueError(f"there are {len(found)} nodes, the line has {clients} clients")
    replies = grid.send_and_receive([Message(RecordDict(), node, MessageType.QUERY) for node in found])
    return {int(content_of(reply)["own"]["client"]): reply.metadata.src_node_id for reply in replies}


def content_of(reply: Message) -> RecordDict:
    """Return the content of a reply; raise RuntimeError if the client failed."""
    if reply.has_error():
        raise RuntimeError(f"node {reply.metadata.src_node_id} failed: {reply.error.reason}")
    return reply.content


def reply_of(content: RecordDict) -> Reply:
    """Return the packet of a reply and the number of images."""
    (packet,) = content["packet"].to_numpy_ndarrays()
    return packet, int(content["metrics"]["images"])


app = server_app()
