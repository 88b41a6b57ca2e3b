"""The connections between the processes of one run. Messages are lines of JSON, each a dict.

Process 0 listens at the coordinator's address until all processes have connected, then leaves the port to
jax.distributed. Every other process has one connection, to process 0, which passes messages on. A thread reads each
connection until it ends.
"""
import contextlib
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
    self._lock = threading.Lock()  # of what follows, until all have connected
    self._links: dict[int, _Link] = {}  # by number of the process
    self._problem: str | None = None  # why a process does not fit
    self._begun = False  # whether all processes have connected
    self._inbox: queue.Queue[Message] = queue.Queue()
    self._over: set[int] = set()  # processes whose run is over
    self._left = False  # whether this process has left

  # ------------------------------------------------------------ meeting

  def listen(self, port: int) -> None:
    """Accepts one connection from every other process; for process 0.

    Raises:
      BadInput: the port cannot be used, a process does not connect in time, or one does not fit.
    """
    try:
      family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
      listener = socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
      raise BadInput(f"--coordinator names the port {port}, which cannot be used ({error.strerror}); "
                     "choose another.") from error
    wait = _Wait(self._seconds)
    with listener:
      listener.settimeout(_RETRY)
      while missing := self._missing():
        with contextlib.suppress(OSError):  # nobody has come, or the connection has ended already
          connection = listener.accept()[0]
          connection.settimeout(_HELLO)
          self._watch(_Link(connection))
        if self._problem is not None:
          raise BadInput(self._problem)
        if wait.reports(f"{named(missing)} of {self._num} to connect"):
          self._send_all(dict(waiting=missing))
    self._send_all(dict(go=True))

  def connect(self, host: str, port: int) -> None:
    """Connects to process 0 and waits until all processes have; for the others.

    Raises:
      BadInput: process 0 cannot be reached in time, or the others do not come.
    """
    wait, self._address = _Wait(self._seconds), f"{host}:{port}"
    while True:
      try:
        connection = socket.create_connection((host, port), timeout=min(_AGAIN, wait.slice()))
        break
      except OSError as error:
        reason = error.strerror or str(error)
      wait.reports(f"process 0 at {self._address} ({reason})")
      time.sleep(_RETRY)
    connection.settimeout(None)
    link = self._links[0] = _Link(connection, 0)
    link.send(dict(hello=self.me, num=self._num))
    self._watch(link)
    self._receive("go", wait, lambda: "process 0 to gather the others")

  def _missing(self) -> list[int]:
    """The processes that have not connected yet; if there are none, the run has begun."""
    with self._lock:
      missing = [number for number in range(1, self._num) if number not in self._links]
      self._begun = not missing
      return missing

  def _welcome(self, link: "_Link", hello: Message) -> None:
    """Gives a connection the number that its process names; raises ValueError if the process does not fit."""
    number, num = hello["hello"], hello["num"]
    if type(number) is not int:
      raise ValueError
    with self._lock:
      if num == self._num and 0 < number < num and number not in self._links:
        link.number, self._links[number] = number, link
        return
    problem = (f"--num_processes is {num} for process {number} and {self._num} for process 0; start all with the same."
               if num != self._num else
               f"two processes have --process_id={number}; start them with 0 to {num - 1}, each once.")
    link.send(_left(self.me, problem, 2))
    self._problem = problem
    raise ValueError(problem)

  # ------------------------------------------------------------ messages

  def gather(self, what: str, value: Any) -> list[Any]:
    """Exchanges values: every process gets those of all processes.

    Args:
      what: names the values in messages.
      value: of this process; JSON can hold it.

    Returns:
      The values in the order of the processes' numbers.

    Raises:
      BadInput: a process does not report its value in time.
    """
    wait = _Wait(self._seconds)
    if self.me:
      self._links[0].send(dict(name=what, sender=self.me, value=value))
      return self._receive("values", wait, lambda: f"the others to report their {what}")["values"]
    values = {0: value}
    absent = lambda: f"{named([n for n in range(self._num) if n not in values])} to report the {what}"
    while len(values) < self._num:
      message = self._receive("name", wait, absent)
      values[message["sender"]] = message["value"]
    ordered = [values[number] for number in range(self._num)]
    self._send_all(dict(values=ordered))
    return ordered

  def leave(self, sentence: str | None, code: int) -> None:
    """See `peers.leave`."""
    self._left = True
    self._send_all(_left(self.me, sentence, code))

  def _receive(self, kind: str, wait: "_Wait", awaited: Callable[[], str]) -> Message:
    """The next message that has the entry `kind`; `awaited` says what this process waits for."""
    while True:
      try:
        message = self._inbox.get(timeout=wait.slice())
      except queue.Empty:
        wait.reports(awaited())
        continue
      if "waiting" in message:
        messages.say(f"waiting for {named(message['waiting'])} of {self._num}")
      if kind in message:
        return message

  def _send_all(self, message: Message) -> None:
    for link in list(self._links.values()):
      link.send(message)

  # ------------------------------------------------------------ watching

  def _watch(self, link: "_Link") -> None:
    threading.Thread(target=self._read, args=(link,), daemon=True).start()

  def _read(self, link: "_Link") -> None:
    """Reads what a process sends until its connection ends."""
    try:
      for message in link.messages():
        if link.number is None:
          self._welcome(link, message)
        elif "left" not in message:
          self._begun = self._begun or "go" in message
          self._inbox.put(message)
        elif message["sentence"] is None:
          self._over.add(message["left"])
        else:
          self._end(message["left"], message["sentence"], message["code"])
    except (OSError, ValueError, KeyError):
      pass
    self._lose(link)

  def _lose(self, link: "_Link") -> None:
    """A connection has ended, or was never one of a process of this run."""
    number = link.number
    with self._lock:
      is_early = self.me == 0 and not self._begun
      if number is None or is_early:
        link.close()
        if number is not None:
          del self._links[number]
          messages.say(f"process {number} has ended before all had connected; waiting for it to be started again")
        return
    if not self._begun:
      self._end(number, f"the program that answers at {self._address} is not process 0 of a run that starts: process 0 "
                "has ended, this process was started too late, or another program uses the port; start all processes "
                "of the run again, together.", code=2)
    elif number not in self._over:
      self._end(number, f"process {number} has ended unexpectedly; run the command again, and it continues from "
                      "the last checkpoint.",
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
  """A connection to another process, whose number is None until it has named it."""

  def __init__(self, connection: socket.socket, number: int | None = None):
    for level, name, value in _KEEP_ALIVE:
      if hasattr(socket, name):
        connection.setsockopt(level, getattr(socket, name), value)
    self.number, self._connection, self._sending = number, connection, threading.Lock()

  def send(self, message: Message) -> None:
    """Sends a message. If the connection has ended, nothing happens, because its reader notices."""
    with contextlib.suppress(OSError), self._sending:
      self._connection.sendall(json.dumps(message).encode() + b"\n")

  def messages(self) -> Iterator[Message]:
    """Yields what arrives until the connection ends; raises OSError or ValueError if it breaks or carries no messages.

    A process that connects has little time for its first message.
    """
    with self._connection.makefile("rb") as lines:
      for line in lines:
        message = json.loads(line)
        if not isinstance(message, dict):
          raise ValueError
        yield message
        self._connection.settimeout(None)

  def close(self) -> None:
    """Closes this side of the connection."""
    self._connection.close()


class _Wait:
  """A wait that reports itself, and ends."""

  def __init__(self, seconds: float):
    now = time.monotonic()
    self._seconds, self._end, self._due = seconds, now + seconds, now + _QUIET

  def slice(self) -> float:
    """Seconds until the wait is over or due, at least 0.01."""
    return max(0.01, min(self._end, self._due) - time.monotonic())

  def reports(self, awaited: str) -> bool:
    """Prints what this process waits for, if it is time to; returns whether it did.

    Raises:
      BadInput: the wait is over.
    """
    now = time.monotonic()
    if now >= self._end:
      raise BadInput(f"waited {self._seconds:g} s for {awaited} in vain; start all processes, or raise --peer_timeout.")
    if now < self._due:
      return False
    self._due = now + _AGAIN
    messages.say(f"waiting for {awaited}")
    return True


def _left(number: int, sentence: str | None, code: int) -> Message:
  return dict(left=number, sentence=sentence and f"process {number} has stopped: {sentence}", code=code)


def named(numbers: Sequence[int]) -> str:
  """E.g. "process 1", "processes 1, 2"."""
  return f"{'process' if len(numbers) == 1 else 'processes'} {', '.join(map(str, numbers))}"
