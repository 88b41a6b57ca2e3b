"""The page of `alma board`: what it shows of each run, and the service that answers with it."""
import collections
import contextlib
import functools
import json
import math
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from alma_jax.errors import BadInput
from alma_jax.messages import brief_number, duration
from alma_jax.monitor import view
from alma_jax.monitor.view import View
from alma_jax.problems import measures
from alma_jax.reports import drawing
from alma_jax.store import run_files
from alma_jax.store.metrics import DRIFT_AFTER, DRIFT_BEFORE
from alma_jax.store.record import Record

_POINTS = 1000  # of a curve; of longer ones every n-th point and the last one are sent
_LOOK = 10.0  # seconds between two searches for new runs
_WATCHED = (run_files.METRICS, run_files.CONFIG, "summary.json", run_files.DIVERGED)
_DASHES = {"-": "solid", "--": "8px,4px", ":": "2px,3px", "-.": "8px,3px,2px,3px"}  # as Plotly writes them


class Board:
  """The runs of a page. Files that have not changed are not read again."""

  def __init__(self, paths: Sequence[str]):
    """Looks for runs.

    Args:
      paths: run folders, or folders that hold run folders, also those that appear later.

    Raises:
      BadInput: a folder does not exist, or holds no run.
    """
    self._paths = list(paths)
    self._folders, self._searched = view.find(paths), time.monotonic()

  def runs(self) -> list[dict[str, Any]]:
    """What the page shows of each run, see `shown`, with its `label`; for a run that cannot be read, its `problem`.

    Runs that are alive come first, then those that need help, then the complete ones; the newest of each come first.
    """
    if time.monotonic() - self._searched > _LOOK:
      self._searched = time.monotonic()
      with contextlib.suppress(BadInput):  # a folder has disappeared: its runs are shown with their problem
        self._folders = view.find(self._paths)
    runs, before = [], collections.Counter[tuple[str, ...]]()
    for folder, label in zip(self._folders, labels([str(folder) for folder in self._folders])):
      signature = _signature(folder)
      try:
        run = view.current(_record(folder, signature))
        like = run.learner, run.record.unit, run.record.metric
        row = shown(run, before[like])
        before[like] += 1
      except BadInput as error:
        row = dict(path=str(folder), state=view.DEAD, problem=str(error))
      began = max((time for name, time, _ in signature if name == run_files.CONFIG), default=0)
      runs.append((view.ORDER.index(row["state"]), -began, row | dict(label=label)))
    return [row for *_, row in sorted(runs, key=lambda run: run[:2])]


def labels(paths: Sequence[str]) -> list[str]:
  """The names of runs: their paths below the folder that all local ones are in, or their addresses."""
  local = {path: os.path.abspath(path) for path in paths if not run_files.is_address(path)}
  root = os.path.commonpath([os.path.dirname(path) for path in local.values()]) if local else ""
  return [os.path.relpath(local[path], root) if path in local else path for path in paths]


def shown(run: View, i: int = 0) -> dict[str, Any]:
  """What the page shows of a run, the i-th of its learner in the same charts; JSON can hold it."""
  record, metric, stages, tested = run.record, run.record.metric, run.stages, run.tested
  look, params = drawing.key("", run.learner, i), record.values("num_params")
  return dict(
      path=str(record.path), name=run.name, state=run.state, doing=run.doing, metric=metric, unit=record.unit,
      colour=look.get_color(), dash=_DASHES[str(look.get_linestyle())],
      further=[*measures.brief(record.further), *run.memory, *run.arrivals],
      prequential_only=record.measure.is_prequential,
      t=len(record.lines), total=record.total, stage=len(stages), stages=run.num_stages, score=run.score,
      compute=brief_number(run.compute), parameters=brief_number(params[-1][1]) if params else "",
      error=tested[-1][1] if tested and stages else None, prequential=run.mean_prequential,
      left=duration(run.seconds_left) if run.seconds_left else None,
      saved=run.saved if run.state != view.FINISHED else None,
      curve=_curve(tested), prequential_curve=_curve(run.prequential), params=_curve(params),
      trainings=[[each["t"], _decision(each)] for each in _thinned(stages)],
      drifts=[[each["t"], each.get(f"prequential_{metric}"),
               f"from {each[DRIFT_BEFORE]:.4g} to {each[DRIFT_AFTER]:.4g}"] for each in run.drifts])


def app(board: Board) -> Any:
  """The FastAPI application of the page."""
  from fastapi import FastAPI, Request, Response
  from fastapi.staticfiles import StaticFiles
  made = FastAPI(title="alma_jax", docs_url=None, redoc_url=None, openapi_url=None)

  def runs(_: Request) -> Response:
    content = json.dumps(board.runs(), allow_nan=False)
    return Response(content, headers={"Cache-Control": "no-store"}, media_type="application/json")

  made.add_route("/runs.json", runs, methods=["GET"])  # also answers HEAD, unlike @made.get
  made.mount("/plotly", StaticFiles(packages=[("plotly", "package_data")]))
  made.mount("/", StaticFiles(directory=pathlib.Path(__file__).parent / "page", html=True))
  return made


def _curve(points: Sequence[tuple[int, float]]) -> list[list[float]]:
  """[[t, ...], [value, ...]] of the finite points, thinned."""
  kept = _thinned([point for point in points if math.isfinite(point[1])])
  return [[t for t, _ in kept], [value for _, value in kept]]


def _thinned(items: Sequence[Any]) -> list[Any]:
  step = -(-len(items) // _POINTS) or 1
  kept = list(items[::step])
  return kept if not items or (len(items) - 1) % step == 0 else [*kept, items[-1]]


def _decision(line: dict[str, Any]) -> str:
  """Why the learner was trained, as the line of metrics.jsonl says."""
  if line.get("regret") is None or line.get("training_price") is None:
    return ""
  return f"regret {line['regret']:.3g}, price of a training {line['training_price']:.3g}"


def _signature(folder: pathlib.Path) -> tuple[tuple[str, int, int], ...]:
  """Names, times and sizes of the files that the page is made from; another one means that they have changed."""
  with contextlib.suppress(FileNotFoundError):
    return tuple((entry.name, found.st_mtime_ns, found.st_size) for entry in os.scandir(folder)
                 if entry.name in _WATCHED and (found := entry.stat()))
  return ()


@functools.lru_cache(maxsize=1000)
def _record(folder: pathlib.Path, signature: Any) -> Record:
  del signature
  return view.view(folder).record
