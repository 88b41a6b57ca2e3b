"""Connects the processes of one run: they meet before jax starts, compare settings and data, and end together.

The connections (channel.py) stay open. If a process ends, the others notice it at once; jax alone would wait for a
heartbeat and print a stack trace.
"""
import json
import pathlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from alma_jax.errors import BadInput
from alma_jax.parallel.channel import Channel, named

_Result = TypeVar("_Result")

_channel: Channel | None = None  # the connections of this process


def meet(host: str, port: int, num: int, me: int, seconds: float) -> None:
  """Connects this process with the others of its run; the functions below use the connections.

  Args:
    host, port: the address at which process 0 listens.
    num: number of processes.
    me: number of this process, from 0.
    seconds: how long to wait for the others, here and in the functions below.

  Raises:
    BadInput: the address cannot be used, a process does not connect in time, or two processes disagree about `num` or
      have the same number.
  """
  global _channel
  _channel = Channel(num, me, seconds)
  if me == 0:
    _channel.listen(port)
  else:
    _channel.connect(host, port)


def share_of(devices: list[str]) -> list[int] | None:
  """Which of the devices that this process sees it uses, after `meet`: an equal share if others see the same ones.

  Args:
    devices: names of the devices that this process sees.

  Returns:
    Their positions; None, which is all of them, if no other process sees them, or if there are too few to share.
  """
  assert _channel is not None
  here = [_machine(), *devices]
  places = _channel.gather("machines", here)
  mine = [number for number, place in enumerate(places) if place == here]
  number, share = mine.index(_channel.me), len(devices) // len(mine)
  return None if len(mine) == 1 or not share else list(range(number * share, (number + 1) * share))


def compare(what: str, facts: dict[str, Any]) -> None:
  """Checks that all processes hold the same facts. All processes make the same calls in the same order.

  Args:
    what: how messages refer to the facts, the same in all processes.
    facts: JSON-able dict.

  Raises:
    BadInput: the facts differ. The message names the entries and their values.
  """
  values = _gather(what, facts)
  differ = [key for key in values[0] if any(value.get(key) != values[0][key] for value in values)]
  differ += sorted({key for value in values for key in value} - set(values[0]))
  if differ:
    listed = "; ".join(f"{key} is {_by_process([value.get(key) for value in values])}" for key in differ[:5])
    more = f"; and {len(differ) - 5} more" if len(differ) > 5 else ""
    raise BadInput(f"the processes of this run differ in {what}: {listed}{more}.")


def together(what: str, work: Callable[[], _Result]) -> _Result:
  """Calls a function in all processes. If it raises BadInput in one of them, all processes raise BadInput.

  All processes make the same calls in the same order.

  Args:
    what: how messages refer to what the function does, the same in all processes.
    work: () -> anything. It must not wait for other processes.

  Returns:
    What `work` returns.
  """
  problem = None
  try:
    result = work()
  except BadInput as error:
    problem = error
  refused = [number for number, is_refused in enumerate(_gather(what, problem is not None)) if is_refused]
  if problem is not None:
    raise problem
  if refused:
    raise BadInput(f"{named(refused)} of this run cannot go on; its own message says why.")
  return result


def leave(sentence: str | None = None, code: int = 1) -> None:
  """Informs the other processes that this one ends.

  Args:
    sentence: why it ends before the run is over; the others then end as well. None: the run is over.
    code: exit code of the others.
  """
  if _channel is not None:
    _channel.leave(sentence, code)


def is_connected() -> bool:
  """Whether this process is connected with others."""
  return _channel is not None


def _gather(what: str, value: Any) -> list[Any]:
  """The values of all processes as they come back from JSON, where a tuple is a list; that of this process as well."""
  if _channel is not None:
    return _channel.gather(what, json.loads(json.dumps(value)))
  if jax.process_count() > 1:
    return _gather_collectively(value)
  return [value]


def _gather_collectively(value: Any) -> list[Any]:
  """The values of all processes if jax.distributed was initialised outside of alma_jax, without `meet`."""
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(len(text)))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[:len(text)] = text
  texts = multihost_utils.process_allgather(padded)
  return [json.loads(bytes(text[:size])) for text, size in zip(texts, sizes.ravel())]


def _by_process(values: Sequence[Any]) -> str:
  """E.g. "1.0 in processes 0, 2 and 0.05 in process 1"."""
  groups: dict[str, list[int]] = {}
  for number, value in enumerate(values):
    groups.setdefault(json.dumps(value), []).append(number)
  return " and ".join(f"{json.loads(text)!r} in {named(numbers)}" for text, numbers in groups.items())


def _machine() -> str:
  """A name that differs between machines, and between most containers of one machine."""
  try:
    booted = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
  except OSError:
    booted = ""
  return f"{socket.gethostname()} {booted}"
