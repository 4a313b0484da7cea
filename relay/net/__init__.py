"""ZeroMQ sockets, for the bus (`bus`) and for requests to the daemon, its hosts and the embedder (`requests`).

Peers on socket files and loopback send a token. Other endpoints require CURVE with a known key. Plain and CURVE
endpoints never share a socket, because peers without CURVE could claim any `User-Id`.
"""

from relay.net.bus import (
    AsyncClientSocket,
    AsyncDoorbellSocket,
    ClientSocket,
    CollectorSocket,
    DoorbellSocket,
    ServerSocket,
)
from relay.net.pool import CircuitBreaker, RequestSockets
from relay.net.requests import AsyncReplySocket, AsyncRequestSocket, ReplySocket, RequestSocket
from relay.net.zeromq import CurveAuthenticator, Frames, Message, curve_pair

__all__ = [
    "AsyncClientSocket",
    "AsyncDoorbellSocket",
    "AsyncReplySocket",
    "AsyncRequestSocket",
    "CircuitBreaker",
    "ClientSocket",
    "CollectorSocket",
    "CurveAuthenticator",
    "DoorbellSocket",
    "Frames",
    "Message",
    "ReplySocket",
    "RequestSocket",
    "RequestSockets",
    "ServerSocket",
    "curve_pair",
]
