"""The connections between the processes of one run. Messages are lines of JSON, each a dict.

Process 0 listens at the coordinator's address until all processes have connected, then leaves the port to
jax.distributed. Every other process has one connection, to process 0, which passes messages on.
"""
import contextlib
import json
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from alma_jax import messages
from alma_jax.errors import BadInput

_QUIET = 3.0  # seconds of waiting after which a process reports it
_AGAIN = 30.0  # seconds from one such report to the next
_RETRY = 0.2  # seconds between two attempts to connect
_HELLO = 5.0  # seconds in which a new connection has to name its process
# A machine that loses its power ends no connection, so a connection without an answer for a minute counts as ended.
_KEEP_ALIVE = ((socket.SOL_SOCKET, "SO_KEEPALIVE", 1), (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 20),
               (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10), (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4))

Message = dict[str, Any]


class Channel:
  """The connections of a process: process 0 has one to every other process, the others have one to process 0."""

  def __init__(self, num: int, me: int, seconds: float):
    """Connects nothing yet; the arguments are those of `peers.meet`."""
    self._num, self.me, self._seconds = num, me, seconds
    self._address = ""  # of process 0
    self._links: dict[int, _Link] = {}  # by number of the process
    self._refused: list[_Link] = []  # of processes that do not fit; they get the reason when this process leaves
    self._inbox: queue.Queue[Message] = queue.Queue()
    self._begun = False  # whether all processes have connected
    self._over: set[int] = set()  # processes whose run is over
    self._left = False  # whether this process has left

  # ------------------------------------------------------------ meeting

  def listen(self, port: int) -> None:
    """Accepts one connection from every other process; for process 0."""
    try:
      family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
      listener = socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
      raise BadInput(f"--coordinator names the port {port}, which cannot be used ({error.strerror}); "
                     "choose another.") from error
    with listener, selectors.DefaultSelector() as ready:
      listener.setblocking(False)
      ready.register(listener, selectors.EVENT_READ)
      self._accept_all(listener, ready)
    self._begun = True
    self._send_all(dict(go=True))
    for number in self._links:
      self._watch(number)

  def connect(self, host: str, port: int) -> None:
    """Connects to process 0 and waits until all processes have; for the others."""
    wait, self._address = _Wait(self._seconds), f"{host}:{port}"
    while True:
      try:
        connection = socket.create_connection((host, port), timeout=min(_AGAIN, wait.slice()))
        break
      except OSError as error:
        reason = error.strerror or str(error)
      if wait.is_over():
        raise BadInput(f"process 0 cannot be reached at {self._address} ({reason}) within {self._seconds:g} s; start "
                       "it, or raise --peer_timeout.")
      if wait.is_due():
        messages.say(f"waiting for process 0 at {self._address} ({reason})")
      time.sleep(_RETRY)
    self._links[0] = _Link(connection)
    self._links[0].send(dict(hello=self.me, num=self._num))
    self._watch(0)
    self._receive("go", wait, lambda: "process 0 to gather the others")

  def _accept_all(self, listener: socket.socket, ready: selectors.BaseSelector) -> None:
    """Waits until there is a connection to every other process; `ready` watches `listener`."""
    wait = _Wait(self._seconds)
    strangers: dict[_Link, float] = {}  # connections that have not named their process yet, and their deadlines
    try:
      while self._missing():
        found = [key.fileobj for key, _ in ready.select(max(0.0, min(
            [wait.slice(), *(until - time.monotonic() for until in strangers.values())])))]
        for number in [number for number, link in self._links.items() if link in found]:
          self._read_early(number, ready)  # first, because a process may come in the place of one that has ended
        for link in [link for link in strangers if link in found]:
          self._welcome(link, strangers, ready)
        if listener in found:
          with contextlib.suppress(OSError):  # the connection has ended already
            link = _Link(listener.accept()[0])
            strangers[link] = time.monotonic() + _HELLO
            ready.register(link, selectors.EVENT_READ)
        for link in [link for link, until in strangers.items() if time.monotonic() > until]:
          self._drop(link, strangers, ready)
        if self._missing() and wait.is_over():
          raise BadInput(f"{named(self._missing())} of {self._num} did not connect within {self._seconds:g} s; start "
                         "them, or raise --peer_timeout.")
        if self._missing() and wait.is_due():
          messages.say(f"waiting for {named(self._missing())} of {self._num}")
          self._send_all(dict(waiting=self._missing()))
    finally:
      for link in strangers:
        link.close()

  def _read_early(self, number: int, ready: selectors.BaseSelector) -> None:
    """Reads from a process before all have connected: it can only have ended, with a message or without one."""
    link = self._links[number]
    try:
      self._end_if_left(number, link.receive())
    except (OSError, ValueError):
      ready.unregister(link)
      self._links.pop(number).close()
      messages.say(f"process {number} has ended before all had connected; waiting for it to be started again")

  def _end_if_left(self, number: int, received: Sequence[Message]) -> None:
    for message in received:
      if message.get("sentence"):
        self._end(number, message["sentence"], message["code"])

  def _welcome(self, link: "_Link", strangers: dict["_Link", float], ready: selectors.BaseSelector) -> None:
    """Adds the process that a connection names, or raises BadInput if it does not fit."""
    try:
      received = link.receive()
      if not received:
        return  # a part of a line
      (first, *more) = received
      number, num = first["hello"], first["num"]
      if type(number) is not int:
        raise ValueError
    except (OSError, ValueError, KeyError):
      self._drop(link, strangers, ready)
      return
    del strangers[link]
    if num == self._num and number in self._missing():
      self._links[number] = link
      self._end_if_left(number, more)
      return
    self._refused.append(link)
    if num != self._num:
      raise BadInput(f"--num_processes is {num} for process {number} and {self._num} for process 0; "
                     "start all with the same.")
    raise BadInput(f"two processes have --process_id={number}; start them with 0 to {self._num - 1}, each once.")

  @staticmethod
  def _drop(link: "_Link", strangers: dict["_Link", float], ready: selectors.BaseSelector) -> None:
    """Closes a connection that belongs to no process of this run."""
    ready.unregister(link)
    del strangers[link]
    link.close()

  def _missing(self) -> list[int]:
    return [number for number in range(1, self._num) if number not in self._links]

  # ------------------------------------------------------------ messages

  def gather(self, what: str, value: Any) -> list[Any]:
    """The values of all processes in the order of their numbers; every process gets them. `what` names the values."""
    wait = _Wait(self._seconds)
    if self.me:
      self._links[0].send(dict(name=what, sender=self.me, value=value))
      return self._receive("values", wait, lambda: f"the others to report their {what}")["values"]
    values = {0: value}
    absent = lambda: _missing_of(self._num, values) + f" to report the {what}"
    while len(values) < self._num:
      message = self._receive("name", wait, absent)
      values[message["sender"]] = message["value"]
    ordered = [values[number] for number in range(self._num)]
    self._send_all(dict(values=ordered))
    return ordered

  def leave(self, sentence: str | None, code: int) -> None:
    """See `peers.leave`."""
    self._left = True
    sentence = sentence and f"process {self.me} has stopped: {sentence}"
    message = dict(left=self.me, sentence=sentence, code=code)
    self._send_all(message)
    for link in self._refused:
      link.send(message)

  def _receive(self, kind: str, wait: "_Wait", awaited: Callable[[], str]) -> Message:
    """The next message that has the entry `kind`; `awaited` says what this process waits for."""
    while True:
      try:
        message = self._inbox.get(timeout=wait.slice())
      except queue.Empty:
        if wait.is_over():
          raise BadInput(f"waited {self._seconds:g} s for {awaited()} in vain; start all processes, or raise "
                         "--peer_timeout.") from None
        if wait.is_due():
          messages.say(f"waiting for {awaited()}")
        continue
      if "waiting" in message:
        messages.say(f"waiting for {named(message['waiting'])} of {self._num}")
      if kind in message:
        return message

  def _send_all(self, message: Message) -> None:
    for link in list(self._links.values()):
      link.send(message)

  # ------------------------------------------------------------ watching

  def _watch(self, number: int) -> None:
    threading.Thread(target=self._read, args=(number,), daemon=True).start()

  def _read(self, number: int) -> None:
    """Reads what a process sends until its connection ends."""
    link = self._links[number]
    try:
      while True:
        for message in link.receive():
          if "left" not in message:
            self._begun = self._begun or "go" in message
            self._inbox.put(message)
          elif message["sentence"] is None:
            self._over.add(message["left"])
          else:
            self._end(message["left"], message["sentence"], message["code"])
    except (OSError, ValueError):
      pass
    if not self._begun:
      self._end(number, f"the program that answers at {self._address} is not process 0 of a run that starts: process 0 "
                "has ended, this process was started too late, or another program uses the port; start all processes "
                "of the run again, together.", code=2)
    elif number not in self._over:
      self._end(number, f"process {number} has ended unexpectedly; the same command goes on from the last checkpoint.",
                code=1)

  def _end(self, number: int, sentence: str, code: int) -> None:
    """Tells the other processes that one has ended, and ends this process, unless its run is over."""
    if self._left:
      return
    try:
      for other, link in list(self._links.items()):
        if self.me == 0 and other != number:
          link.send(dict(left=number, sentence=sentence, code=code))
      messages.say(f"error: {sentence}")
    finally:
      os._exit(code)  # the main thread may be inside a collective that never returns


class _Link:
  """A connection to another process."""

  def __init__(self, connection: socket.socket):
    connection.settimeout(None)
    for level, name, value in _KEEP_ALIVE:
      if hasattr(socket, name):
        connection.setsockopt(level, getattr(socket, name), value)
    self._connection, self._rest, self._sending = connection, b"", threading.Lock()

  def fileno(self) -> int:
    """For selectors."""
    return self._connection.fileno()

  def send(self, message: Message) -> None:
    """Sends a message. If the connection has ended, nothing happens, because its reader notices."""
    try:
      with self._sending:
        self._connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
      pass

  def receive(self) -> list[Message]:
    """Waits until something arrives, and returns the messages that are complete.

    Raises:
      OSError, ValueError: the connection has ended, or what arrives is not a message.
    """
    data = self._connection.recv(2**16)
    if not data:
      raise ConnectionResetError
    *lines, self._rest = (self._rest + data).split(b"\n")
    received = [json.loads(line) for line in lines]
    if not all(isinstance(message, dict) for message in received):
      raise ValueError
    return received

  def shutdown(self) -> None:
    """Ends the connection for both sides."""
    with contextlib.suppress(OSError):
      self._connection.shutdown(socket.SHUT_RDWR)

  def close(self) -> None:
    """Closes this side of the connection."""
    self._connection.close()


class _Wait:
  """Measures a wait: when it is over, and when the process should report that it waits."""

  def __init__(self, seconds: float):
    now = time.monotonic()
    self._end, self._due = now + seconds, now + _QUIET

  def slice(self) -> float:
    """Seconds until the wait is over or due, at least 0.01."""
    return max(0.01, min(self._end, self._due) - time.monotonic())

  def is_over(self) -> bool:
    """Whether the time is up."""
    return time.monotonic() >= self._end

  def is_due(self) -> bool:
    """Whether the process should now report that it waits; the next report is due _AGAIN seconds later."""
    due = time.monotonic() >= self._due
    if due:
      self._due = time.monotonic() + _AGAIN
    return due


def named(numbers: Sequence[int]) -> str:
  """E.g. "process 1", "processes 1, 2"."""
  return f"{'process' if len(numbers) == 1 else 'processes'} {', '.join(map(str, numbers))}"


def _missing_of(num: int, values: dict[int, Any]) -> str:
  return named([number for number in range(num) if number not in values])
