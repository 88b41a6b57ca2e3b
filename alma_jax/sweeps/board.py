"""What a person sees of a sweep: a live table on a terminal, a line per finished run elsewhere."""
import multiprocessing
import os
import sys
import time

from alma_jax.sweeps import jobs as sweep_jobs
from alma_jax.sweeps import pool

_BAR = 24  # characters
_MOST_FAILED = 5  # shown while it runs; all are listed at the end


class Board:
  """The state of all jobs, and a picture of it."""

  def __init__(self, jobs, states, num_workers):
    """Shows `jobs`, which stand as `states` {name: jobs.State} says, `num_workers` of them at once."""
    self._jobs, self._states, self._num_workers = {job.name: job for job in jobs}, dict(states), num_workers
    self._began, self._taken, self._resumed = {}, [], set()  # when each began, what the others took
    self._costs = _Costs([job for job in jobs if states[job.name].kind != sweep_jobs.FINISHED])
    self._live = None

  def __enter__(self):
    if sys.stderr.isatty():
      from rich.console import Console
      from rich.live import Live
      self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
      self._live.start()
    return self

  def __exit__(self, *unused):
    if self._live:
      self._live.stop()
    self._costs.close()

  def update(self, event):
    """Takes note of a pool.Event."""
    if event.job is not None:
      self._note(event)
    if self._live:
      for name, state in self._states.items():
        if state.kind == sweep_jobs.RUNNING:
          self._states[name] = state._replace(done=sweep_jobs.num_done(self._jobs[name]))
      self._live.update(self._table(), refresh=True)

  def summary(self):
    """How many are finished, and what failed with its last line."""
    lines = [f"{self._count(sweep_jobs.FINISHED)} of {len(self._jobs)} runs are finished."]
    for kind in (sweep_jobs.REFUSED, sweep_jobs.FAILED):
      lines += [f"{kind}: {name}: {state.line}" for name, state in self._of(kind).items()]
    return "\n".join([*lines, "--retry tries what failed again."] if self._of(sweep_jobs.FAILED) else lines)

  def all_finished(self):
    """Whether nothing is left to do."""
    return self._count(sweep_jobs.FINISHED) == len(self._jobs)

  def line(self):
    """One line about all jobs."""
    waiting, left = self._count(sweep_jobs.NEW) + self._count(sweep_jobs.BEGUN), self._seconds_left()
    parts = [f"{self._count(kind)} {kind}" for kind in (sweep_jobs.FINISHED, sweep_jobs.RUNNING, sweep_jobs.FAILED)]
    return ", ".join([*parts, f"{waiting} waiting", *([f"about {_duration(left)} left"] if left else [])])

  def _note(self, event):
    name, old = event.job.name, self._states[event.job.name]
    if event.kind == pool.STARTED:
      self._began[name] = time.monotonic()
      if old.done:
        self._resumed.add(name)
      self._states[name] = old._replace(kind=sweep_jobs.RUNNING)
      return
    seconds = time.monotonic() - self._began.get(name, time.monotonic())
    kind = {pool.DONE: sweep_jobs.FINISHED, pool.FAILED: sweep_jobs.FAILED}.get(event.kind, sweep_jobs.BEGUN)
    done = old.total if event.kind == pool.DONE else sweep_jobs.num_done(event.job)
    self._states[name] = old._replace(kind=kind, done=done, line=event.line)
    if event.kind == pool.DONE and name not in self._resumed:
      self._taken.append((name, seconds))
    if event.kind == pool.LOST:
      self._say(f"{name}: {event.line}; it is tried again.")
    elif event.kind == pool.FAILED:
      self._say(f"{name} failed: {event.line}")
    elif event.kind == pool.DONE and not self._live:
      self._say(f"{name} finished in {_duration(seconds)}; {self.line()}")

  def _say(self, text):
    if self._live:
      self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
    else:
      print(text, file=sys.stderr, flush=True)

  def _of(self, kind):
    return {name: state for name, state in self._states.items() if state.kind == kind}

  def _count(self, kind):
    return len(self._of(kind))

  def _seconds_left(self):
    """Of the whole sweep, from the runs finished so far; None while there is nothing to tell it from."""
    costs = self._costs.get()
    taken = [(costs[name], took) for name, took in self._taken if name in costs] if costs else []
    if not taken:
      return None
    from alma_jax.sweeps import seconds
    open_kinds = (sweep_jobs.NEW, sweep_jobs.BEGUN, sweep_jobs.RUNNING)
    left = [name for name, state in self._states.items() if state.kind in open_kinds and name in costs]
    found = seconds.predict(taken, [costs[name] for name in left])
    rest = [took * (1 - self._states[name].done / self._states[name].total) for name, took in zip(left, found)]
    return max(sum(rest) / self._num_workers, max(rest, default=0.0))

  def _table(self):
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text
    table = Table.grid(padding=(0, 2))
    for name, state in self._states.items():
      if state.kind == sweep_jobs.RUNNING:
        full = _BAR * state.done // state.total
        table.add_row(Text(name), Text("━" * full, style="bold") + Text("─" * (_BAR - full), style="dim"),
                      Text(f"{state.done} of {state.total} mega-batches"),
                      Text(_duration(time.monotonic() - self._began[name])))
    failed = [Text(f"failed: {name}: {state.line}", style="red", overflow="ellipsis", no_wrap=True)
              for name, state in list(self._of(sweep_jobs.FAILED).items())[-_MOST_FAILED:]]
    return Group(Text(self.line(), style="bold"), table, *failed)


class _Costs:
  """Predictions of what jobs cost, made in a process of low priority beside the workers."""

  def __init__(self, jobs):
    self._found, self._pipe = None, None
    if len(jobs) > 1:
      context = multiprocessing.get_context("spawn")
      self._pipe, theirs = context.Pipe(duplex=False)
      packed = {job.name: job.packed() for job in jobs}
      self._process = context.Process(target=_predict, args=(packed, theirs), daemon=True)
      self._process.start()
      theirs.close()

  def get(self):
    """{name: Prediction}, or None as long as there is none."""
    if self._pipe is not None and self._pipe.poll():
      try:
        self._found = self._pipe.recv()
      except (EOFError, OSError):
        self._found = None  # its data cannot be used: the runs will say so
      self.close()
    return self._found

  def close(self):
    """Ends the process, if it has not ended."""
    if self._pipe is not None:
      self._pipe.close()
      self._process.kill()
      self._process.join()
      self._pipe = None


def _predict(jobs, pipe):
  os.nice(10)
  os.environ["JAX_PLATFORMS"] = "cpu"
  with open(os.devnull, "w") as nowhere:
    os.dup2(nowhere.fileno(), 1)
    os.dup2(nowhere.fileno(), 2)
  from alma_jax.sweeps import predict, seconds
  configs = [sweep_jobs.unpacked(job)[0] for job in jobs.values()]
  found = dict(zip(jobs, predict.predict(configs)))
  pipe.send({name: cost for name, cost in found.items() if isinstance(cost, seconds.Prediction)})


def _duration(seconds):
  """E.g. "8 s", "14 min", "2.5 h"."""
  if seconds < 100:
    return f"{seconds:.0f} s"
  return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
