"""The lease of a run folder in a store: an object that its owner replaces every few seconds.

A store has no locks. A lease that does not change for `SECONDS` belongs to a process that has ended, and is taken over.
No clocks are compared. This is weaker than the lock of a local folder: an owner that does not reach the store for that
long, or that is suspended, may lose its lease to another process while it still computes. It notices that at its next
heartbeat, before each manifest, before it deletes an object, and before it tries again what has failed; then it ends.
Between that look and the change itself some milliseconds remain, and a change that is on its way may arrive later.
"""
import json
import platform
import threading
import time
import uuid

from alma_jax import messages
from alma_jax.errors import InUse
from alma_jax.files import parse_json
from alma_jax.store import remote

SECONDS = 60.0  # without a heartbeat, after which a lease may be taken over
BEAT = 15.0  # seconds between two heartbeats
_LOOK = 2.0  # seconds between two looks at the lease of another process


class Lease:
  """The lease of a run folder, renewed until it is released.

  Attributes:
    is_lost: whether another process has taken it over.
  """

  def __init__(self, place: remote.Remote, folder_id: str):
    """Takes the lease. The local folder, which has this id, is locked by this process.

    Raises:
      InUse: another process has it.
      remote.Problem: the store cannot be used.
    """
    self._place, self._beat, self.is_lost = place, 0, False
    self._owner, self._session = f"{platform.node()} {folder_id}", uuid.uuid4().hex
    self._take()
    place.guard = lambda: self.check(is_patient=False)
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._renew, daemon=True)
    self._thread.start()

  def check(self, is_patient: bool = True) -> None:
    """Raises remote.Lost if another process has taken the lease over; it may have deleted it at its own end."""
    held = self._place.read(remote.LEASE, is_patient)
    self.is_lost = self.is_lost or held is None or _entry(held, "session") != self._session
    if self.is_lost:
      raise remote.Lost

  def release(self) -> None:
    """Ends the heartbeat, and deletes the lease."""
    self._ended.set()
    self._thread.join(timeout=2.0)
    if self._thread.is_alive():
      return  # the store cannot be reached
    try:
      self._place.delete([remote.LEASE])
    except (remote.Lost, remote.Problem):
      pass  # nobody renews it

  def _take(self) -> None:
    began = time.monotonic()
    while True:
      held = self._place.read(remote.LEASE)  # first, for stores whose puts do not know conditions
      if held is None:
        if self._place.create(remote.LEASE, self._text()):
          return
        if time.monotonic() - began > 2 * SECONDS:
          raise remote.Problem(f"{remote.LEASE} can be neither read nor made", is_final=True)
        time.sleep(min(_LOOK, SECONDS / 4))  # another process was faster, or the store shows it late
      elif _entry(held, "owner") == self._owner:  # its process has ended, as this one has locked the folder
        self._place.write(remote.LEASE, self._text())
        return
      else:
        self._await_end(held)
        if self._place.read(remote.LEASE) == held:
          self._place.delete([remote.LEASE])

  def _await_end(self, held: bytes) -> None:
    """Returns if a lease does not change for SECONDS; raises InUse if it does."""
    began = time.monotonic()
    who = f"a process on {_entry(held, 'owner').split(' ')[0]}"
    messages.say(f"{who} has used {self._place.address}; waiting up to {messages.duration(SECONDS)} for a sign of it")
    while time.monotonic() - began < SECONDS:
      time.sleep(min(_LOOK, SECONDS / 4))
      now = self._place.read(remote.LEASE)
      if now is None:
        return
      if now != held:
        raise InUse(f"the run folder {self._place.address} is in use by {who}; wait until it ends, or choose another "
                    "folder.")

  def _renew(self) -> None:
    while not self._ended.wait(BEAT):
      try:
        self.check(is_patient=False)
        self._place.write(remote.LEASE, self._text(), is_patient=False)
      except remote.Lost:
        return
      except remote.Problem:  # the store cannot be reached: what is uploaded meanwhile says so
        continue

  def _text(self) -> bytes:
    self._beat += 1
    return json.dumps(dict(owner=self._owner, session=self._session, beat=self._beat, time=time.time())).encode()


def holder(held: bytes, folder_id: str) -> str | None:
  """The name of the machine whose process holds a lease; None: no process does, or one that uses the local folder.

  To show it only: without waiting for a heartbeat, it compares the clocks of that machine and of this one.

  Args:
    held: the contents of the lease.
    folder_id: of the local folder of this machine, which has a lock.
  """
  if abs(time.time() - float(_entry(held, "time") or 0.0)) > SECONDS:
    return None
  host, _, folder = _entry(held, "owner").partition(" ")
  return None if (host, folder) == (platform.node(), folder_id) else host or None


def _entry(data: bytes, key: str) -> str:
  try:
    return str(parse_json(data)[key])
  except (ValueError, TypeError, KeyError):
    return ""
