"""Finds out within seconds whether a host can be reached. TFDS itself retries each download ten times, for minutes."""
import contextlib
import functools
import queue
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

_SECONDS = 15.0  # for all attempts together
_PAUSES = (0, 1, 2)  # seconds before each attempt; the first may fail by accident
_PATIENCE = 5.0  # seconds after which IPv4 alone is tried as well
_TIMEOUT = 4  # seconds for one address of a host, which may have several


class Unreachable(OSError):
  """A host cannot be reached. The message says which, and why."""


def fail_fast(open_url: Callable[..., Any]) -> Callable[..., Any]:
  """Wraps a function that opens URLs, so that it fails at once if the host cannot be reached.

  Args:
    open_url: (url, **options) -> anything. The option `verify` says whether certificates are checked.

  Returns:
    A function of the same signature that raises Unreachable. It tests each host once, and tests nothing for URLs other
    than http and https.
  """
  test = functools.cache(why_unreachable)

  def tested(url: str, **options: Any) -> Any:
    scheme, host = urllib.parse.urlsplit(url)[:2]
    reason = test(f"{scheme}://{host}/", options.get("verify", True)) if scheme in ("http", "https") else ""
    if reason:
      raise Unreachable(f"no connection to {host}: {reason}")
    return open_url(url, **options)

  return tested


def why_unreachable(url: str, verify: bool = True) -> str:
  """The reason why the host of a URL cannot be reached, or "" if it can.

  Requests the headers of the URL, through a proxy if the environment names one. Any answer shows that the host can be
  reached, even a refusal. A connection without an answer counts as reached as well, because the host may be slow.
  Addresses are tried one after the other. If the IPv6 addresses do not answer, the IPv4 addresses would be tried too
  late; after a few seconds they are therefore also tried alone.

  Args:
    url: http or https.
    verify: whether certificates are checked.
  """
  reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
  end = time.monotonic() + _SECONDS

  def start(ipv4_only: bool) -> None:
    # In a thread, because a DNS lookup has no time limit.
    threading.Thread(target=lambda: reasons.put(_try(url, verify, ipv4_only)), daemon=True).start()

  start(ipv4_only=False)
  with contextlib.suppress(queue.Empty):
    return reasons.get(timeout=min(_PATIENCE, _SECONDS))
  start(ipv4_only=True)
  reason = f"no answer within {_SECONDS:.0f} seconds"
  for _ in range(2):
    with contextlib.suppress(queue.Empty):
      reason = reasons.get(timeout=max(0.0, end - time.monotonic()))
      if not reason:
        break
  return reason


def _try(url: str, verify: bool, ipv4_only: bool) -> str:
  """As `why_unreachable`, without a limit of time."""
  import requests
  from requests.adapters import HTTPAdapter

  class FromIPv4(HTTPAdapter):
    """Connects from an address of IPv4; addresses of IPv6 cannot be reached from there."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
      super().init_poolmanager(*args, **options, source_address=("0.0.0.0", 0))

    def proxy_manager_for(self, proxy: Any, **options: Any) -> Any:
      return super().proxy_manager_for(proxy, **options, source_address=("0.0.0.0", 0))

  reason, session = "", requests.Session()
  if ipv4_only:
    session.mount("http://", FromIPv4())
    session.mount("https://", FromIPv4())
  for pause in _PAUSES:
    time.sleep(pause)
    try:
      session.head(url, timeout=_TIMEOUT, verify=verify)
      return ""
    except requests.ConnectionError as error:  # no such name, route or proxy, or a bad certificate
      reason = _readable(error)
    except requests.RequestException:
      return ""  # the host was reached
  return reason


def _readable(error: Exception) -> str:
  """The part of a message of urllib3 that says what happened, without the names of its objects."""
  cause = getattr(error.args[0], "reason", error) if error.args else error
  return str(getattr(cause, "original_error", cause)).rpartition(": ")[2]  # `original_error`: that of a proxy
