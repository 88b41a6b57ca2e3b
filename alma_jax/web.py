"""HTTP services of the commands: their socket, and the server. Imports neither FastAPI nor uvicorn at start-up."""
import argparse
import errno
import socket
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from alma_jax import extras
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  import uvicorn

TIMEOUT, CONNECTIONS = 30, 128  # seconds that a client may keep a service waiting, and connections that stay open
_BACKLOG = 2048


def add_arguments(parser: argparse.ArgumentParser, port: int) -> None:
  """Adds the arguments of `listen`; `port` is the default."""
  parser.add_argument("--host", default="127.0.0.1", help="address to listen to; default: 127.0.0.1, this machine")
  parser.add_argument("--port", type=int, default=port, help=f"port; 0: a free one; default: {port}")


def listen(host: str, port: int) -> socket.socket:
  """A socket that is bound before anything slow is loaded.

  Args:
    host: address of this machine, e.g. 127.0.0.1 for itself alone, or 0.0.0.0 for everyone.
    port: 0 to 65535; 0: a free one.

  Raises:
    BadInput: the port is in use, the address cannot be bound, or a package of the extra `serve` is missing.
  """
  extras.need("an HTTP service", *extras.EXTRAS["serve"])
  if not 0 <= port <= 65535:
    raise BadInput(f"--port={port} should be 0 to 65535.")
  try:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.listen(_BACKLOG)  # a port that is bound twice is refused here on some systems
  except OSError as error:
    if error.errno == errno.EADDRINUSE:
      raise BadInput(f"port {port} of {host} is in use; choose another --port.") from error
    raise BadInput(f"--host={host} --port={port} cannot be bound: {error.strerror}; choose others.") from error
  return sock


def address(sock: socket.socket) -> str:
  """The URL of a bound socket."""
  host, port = sock.getsockname()[:2]
  return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server(app: Any, timeout: int = TIMEOUT, connections: int = CONNECTIONS) -> "uvicorn.Server":
  """A server that limits how long it waits for its clients.

  uvicorn alone waits forever for a request, for its body, and for a client to read an answer.

  Args:
    app: the ASGI application. It limits the time of request bodies itself, so that it can answer with an error.
    timeout: seconds after which a connection is closed if its client has not sent a request or read the answer.
    connections: how many stay open; beyond this, those that have waited longest for their clients are closed. If there
      are twice as many, a request gets status 503.
  """
  import uvicorn
  config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", ws="none",
                          timeout_graceful_shutdown=10, timeout_keep_alive=timeout, limit_concurrency=2 * connections)
  made = uvicorn.Server(config)
  config.timeout_notify = 0  # as often as uvicorn looks, which is every second
  config.callback_notify = _Patience(made.server_state.connections, timeout, connections).look
  return made


class _Patience:
  """Closes connections that wait for their clients."""

  def __init__(self, connections: Collection[Any], timeout: float, most: int):
    self._connections, self._timeout, self._most = connections, timeout, most
    self._waiting: dict[Any, tuple[Any, float]] = {}  # by connection: what it waits for, and since when

  async def look(self) -> None:
    now, before = time.monotonic(), self._waiting
    self._waiting = {}
    for connection in self._connections:
      awaited = _awaited(connection)
      if awaited:
        what, since = before.get(connection, (None, now))
        self._waiting[connection] = (awaited, since if what == awaited else now)
    too_many = len(self._connections) - self._most
    for i, (connection, (_, since)) in enumerate(sorted(self._waiting.items(), key=lambda item: item[1][1])):
      if i < too_many or now - since > self._timeout:
        connection.transport.abort()  # close() would wait until the client has read all


def _awaited(connection: Any) -> tuple[Any, ...]:
  """What a connection of uvicorn waits for until its client acts; empty while a request is being answered."""
  cycle, unread = connection.cycle, connection.transport.get_write_buffer_size()
  if cycle is None or cycle.response_complete or connection.transport.is_closing():
    return "a request", cycle, unread  # `unread` bytes of the last answer: fine while they become fewer
  if cycle.more_body:
    return "a body", cycle
  return ("room for an answer", cycle, unread) if connection.flow.write_paused else ()
