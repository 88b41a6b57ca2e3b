"""The live page of runs: one page, the data behind it, and the chart library that Plotly's package carries."""
import hashlib
import importlib.resources
import json
import math
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from alma_jax.errors import BadInput
from alma_jax.messages import duration
from alma_jax.monitor import view
from alma_jax.monitor.view import View
from alma_jax.problems import measures
from alma_jax.store import run_files
from alma_jax.store.metrics import DRIFT_AFTER, DRIFT_BEFORE, Entry

_POINTS = 1000  # of a curve; of longer ones every n-th point and the last one are sent
_LOOK = 10.0  # seconds between two searches for new runs
_WATCHED = (run_files.METRICS, "config.json", "summary.json", run_files.DIVERGED)
# The Okabe-Ito palette and similar colours. Further runs repeat the colours with other dashes (in pixels, as Plotly
# writes them).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195", "#444444")
_DASHES = ("solid", "8px,4px", "2px,3px", "8px,3px,2px,3px", "14px,4px", "14px,3px,2px,3px,2px,3px")
_BRIEF = 18  # characters of a name at an axis, or more if names would be equal
_HERE = pathlib.Path(__file__).parent
_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:"


class Board:
  """The runs of a page. Files that have not changed are not read again."""

  def __init__(self, paths: Sequence[str]):
    """Looks for runs.

    Args:
      paths: run folders, or folders that hold run folders, also those that appear later.

    Raises:
      BadInput: a folder does not exist, or holds no run.
    """
    self._paths, self._lock = list(paths), threading.Lock()
    self._folders, self._searched = view.find(paths), time.monotonic()
    self._views: dict[pathlib.Path, tuple[Any, View]] = {}

  def runs(self) -> list[dict[str, Any]]:
    """What the page shows of each run, see `shown` and `looks`; for a run that cannot be read, its `problem`."""
    with self._lock:
      if time.monotonic() - self._searched > _LOOK:
        self._searched = time.monotonic()
        try:
          self._folders = view.find(self._paths)
        except BadInput:
          pass  # a folder has disappeared: its runs are shown with their problem
      runs = []
      for folder in self._folders:
        try:
          runs.append(shown(self._view(folder)))
        except BadInput as error:
          runs.append(dict(path=str(folder), problem=str(error)))
      return [run | look for run, look in zip(runs, looks([run["path"] for run in runs]))]

  def _view(self, folder: pathlib.Path) -> View:
    signature = tuple(_signature(folder / name) for name in _WATCHED)
    before, kept = self._views.get(folder, (None, None))
    run = view.current(kept.record) if kept is not None and before == signature else view.view(folder)
    self._views[folder] = signature, run
    return run


def looks(paths: Sequence[str]) -> list[dict[str, str]]:
  """How the page names and draws runs in different folders; up to 48 runs all look different.

  Returns:
    {"label": the shortest end of the path that no other run has; "brief": the same, shortened, but not so far that two
    are equal; "colour", "dash"}.
  """
  parts = [pathlib.PurePath(path).parts for path in paths]
  labels = _distinct(lambda n: ["/".join(each[-n:]) for each in parts], range(1, max(map(len, parts), default=0) + 1))
  longest = max(map(len, labels), default=0)
  brief = _distinct(lambda n: [name if len(name) <= n else f"{name[:n // 2]}…{name[len(name) - n // 2 + 1:]}"
                               for name in labels], range(_BRIEF, max(_BRIEF, longest) + 1))
  num = len(_COLOURS)
  return [dict(label=label, brief=short, colour=_COLOURS[i % num], dash=_DASHES[i // num % len(_DASHES)])
          for i, (label, short) in enumerate(zip(labels, brief))]


def shown(run: View) -> dict[str, Any]:
  """What the page shows of a run; JSON can hold it."""
  record, metric, stages, last = run.record, run.record.metric, run.stages, run.tested
  prequential = record.values(f"prequential_{metric}")
  left, num = view.seconds_left(run), view.num_stages(run)
  return dict(
      path=str(record.path), name=run.name, state=run.state, doing=run.doing, metric=metric, unit=record.unit,
      further=measures.brief(record.further), prequential_only=record.measure.is_prequential, t=len(record.lines),
      total=record.total, stage=len(stages), stages=num, error=last[-1][1] if last and stages else None,
      prequential=sum(v for _, v in prequential) / len(prequential) if prequential else None,
      left=duration(left) if left else None, saved=run.saved if run.state != view.FINISHED else None,
      curve=_curve(last), prequential_curve=_curve(prequential), params=_curve(record.values("num_params")),
      trainings=[[each["t"], _decision(each)] for each in _thinned(stages)],
      drifts=[[each["t"], each.get(f"prequential_{metric}"), _told(each)]
              for each in record.lines if each.get(DRIFT_AFTER) is not None])


def app(board: Board) -> Any:
  """The FastAPI application of the page."""
  from fastapi import FastAPI, Request, Response
  made = FastAPI(title="alma_jax", docs_url=None, redoc_url=None, openapi_url=None)
  plotly = importlib.resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()

  def route(place: str, kind: str, content: Callable[[], bytes]) -> None:
    """The browser asks each time whether the content is still that of its tag."""
    def answer(request: Request) -> Response:
      data = content()
      tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
      headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": _POLICY}
      if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
      return Response(data, media_type=kind, headers=headers)

    made.add_route(place, answer, methods=["GET"])  # also answers HEAD, unlike @made.get

  route("/", "text/html; charset=utf-8", (_HERE / "board.html").read_bytes)
  route("/board.js", "text/javascript", (_HERE / "board.js").read_bytes)
  route("/plotly.js", "text/javascript", lambda: plotly)
  route("/runs.json", "application/json", lambda: json.dumps(board.runs(), allow_nan=False).encode())
  return made


def _distinct(names: Callable[[int], list[str]], sizes: Iterable[int]) -> list[str]:
  """The names of the first size by which they all differ, or of the last size."""
  found: list[str] = []
  for size in sizes:
    found = names(size)
    if len({*found}) == len(found):
      break
  return found


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


def _told(line: Entry) -> str:
  """What a line says about a drift alarm, as text."""
  return f"from {line[DRIFT_BEFORE]:.4g} to {line[DRIFT_AFTER]:.4g}"


def _signature(path: pathlib.Path) -> tuple[int, int] | None:
  try:
    found = os.stat(path)
  except OSError:
    return None
  return found.st_mtime_ns, found.st_size
