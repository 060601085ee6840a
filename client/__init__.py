"""The client library: text from a Noria stack, over ZeroMQ, with or without an event loop.

    from noria.client import Client

    with Client() as client:
        for delta in client.generate("Once upon a time", max_tokens=32):
            print(delta.text, end="", flush=True)

`AsyncClient` is the same with `async`. Leaving the loop cancels the request.
"""

from noria.client.asynchronous import AsyncClient
from noria.client.errors import ClientError, Closed, Interrupted, Malformed, Refused, Superseded, Unreachable
from noria.client.generation import Generation
from noria.client.results import Accepted, Alternative, Choice, Completion, Delta, Finish, Logprobs, Timings, Usage
from noria.client.synchronous import Client, SyncGeneration
from noria.client.timeouts import ClientTimeouts
from noria.proto.frontdoor import Code, Description, Forecast, Identified, Message, Standing
from noria.shared.actor.curve import Curve

Patience = ClientTimeouts
"""The earlier name of `ClientTimeouts`."""

__all__ = [
    "Accepted",
    "Alternative",
    "AsyncClient",
    "Choice",
    "Client",
    "ClientError",
    "ClientTimeouts",
    "Closed",
    "Code",
    "Completion",
    "Curve",
    "Delta",
    "Description",
    "Finish",
    "Forecast",
    "Generation",
    "Identified",
    "Interrupted",
    "Logprobs",
    "Malformed",
    "Message",
    "Patience",
    "Refused",
    "Standing",
    "Superseded",
    "SyncGeneration",
    "Timings",
    "Unreachable",
    "Usage",
]
