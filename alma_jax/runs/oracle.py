"""Regret against another run on the same stream, for example one that trains from scratch on all data so far."""
from typing import Any

from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.parallel.sharding import say
from alma_jax.store import local_copy, run_files
from alma_jax.store.metrics import Entry
from alma_jax.store.record import Record

_STREAM = ("seed", "dataset.", "stream.num_megabatches", "stream.untrained_error")  # what makes CERs comparable


class Oracle:
  """The finished run of `log.oracle`."""

  def __init__(self, config: Any, fingerprint: str):
    """Reads the run.

    Args:
      config: RunConfig of the run that regrets.
      fingerprint: of its data, see Protocol.

    Raises:
      BadInput: the run of `log.oracle` has not finished, or is on another stream than `config`.
    """
    record = Record(local_copy.readable(config.log.oracle))
    self._shown = run_files.shown(record.path)
    theirs, mine = configs.identity(record.tree), configs.identity(config)
    differ = [f"{field} ({theirs.get(field)!r} there, {mine[field]!r} here)" for field in mine
              if field.startswith(_STREAM) and mine[field] != theirs.get(field)]
    if differ or record.tree.get("data_fingerprint") != fingerprint:
      raise BadInput(f"log.oracle={self._shown} is a run on another stream: {', '.join(differ) or 'its data differ'}; "
                     "name a run on the same one.")
    if record.summary is None:
      todo = "name another run" if record.divergence is not None else "finish it first, or name another run"
      raise BadInput(f"log.oracle={self._shown} is a run that has not finished; {todo}.")
    self._cer, self._num = record.summary["cer"], record.summary["num_megabatches"]

  def regret(self, summary: Entry) -> Entry:
    """An entry for `summary`; none, with a warning, if a live stream has gone on since the other run ended."""
    num = summary["num_megabatches"]
    if num != self._num:
      say(f"warning: log.oracle={self._shown} has seen {self._num} mega-batches, this run {num}; without a regret")
      return {}
    return {"regret": summary["cer"] - self._cer}
