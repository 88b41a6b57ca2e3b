"""HTTP services of the commands: their socket, and the server. Imports neither FastAPI nor uvicorn at start-up."""
import errno
import importlib.util
import socket
from typing import Any

from alma_jax.errors import BadInput

_PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "plotly")
_BACKLOG = 2048


def check_packages(command: str) -> None:
  """Raises BadInput if a package of the extra `serve` is missing; `command` is named in the message."""
  missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    raise BadInput(f"{command} needs {', '.join(missing)}; run `pip install alma_jax[serve]`.")


def listen(host: str, port: int) -> socket.socket:
  """A socket that is bound before anything slow is loaded.

  Args:
    host: address of this machine, e.g. 127.0.0.1 for itself alone, or 0.0.0.0 for everyone.
    port: 0 to 65535; 0: a free one.

  Raises:
    BadInput: the port is in use, or the address cannot be bound.
  """
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


def run(app: Any, sock: socket.socket) -> None:
  """Serves an ASGI application until SIGINT or SIGTERM; open requests are answered first."""
  import uvicorn
  config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=10, lifespan="on")
  uvicorn.Server(config).run(sockets=[sock])
