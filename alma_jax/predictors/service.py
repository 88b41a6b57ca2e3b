"""The HTTP service of a predictor: /predict, /healthz, /metrics, and a page that tries it.

A request sends examples, never a path or a pickle. The predictor is replaced between two requests: the new one is
loaded, compiled and tried in a thread while the old one answers.
"""
import asyncio
import contextlib
import json
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import prometheus_client as prometheus
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from alma_jax.messages import say
from alma_jax.predictors import folder
from alma_jax.predictors.predictor import Predictor, load
from alma_jax.predictors.requests import JSON, Refused


class Service:
  """A predictor that answers requests, and is replaced when its folder changes."""

  def __init__(self, predictor: Predictor, root: pathlib.Path | None, max_batch: int, max_bytes: int, timeout: float,
               poll: float):
    """Compiles the predictor.

    Args:
      predictor: the first one.
      root: folder in which it is replaced; None: it stays.
      max_batch: examples of a request.
      max_bytes: bytes of the body of a request.
      timeout: seconds that the body of a request may take.
      poll: seconds between two looks at the folder.
    """
    self._root, self._max_batch, self._max_bytes = root, max_batch, max_bytes
    self._timeout, self._poll = timeout, poll
    self._ready = self._prepared(predictor)
    self._limiter: CapacityLimiter | None = None
    self._refused: str | None = None  # the version that could not be loaded, or the reason why none was found
    self.registry = prometheus.CollectorRegistry()
    make = lambda kind, name, text, **options: kind(f"alma_{name}", text, registry=self.registry, **options)
    self._requests = make(prometheus.Counter, "requests", "Requests by HTTP status", labelnames=["status"])
    self._answered = self._requests.labels("200")
    self._examples = make(prometheus.Counter, "examples", "Examples that were predicted")
    self._seconds = make(prometheus.Histogram, "predict_seconds", "Seconds from the end of a request's body to its "
                         "answer", buckets=[.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5])
    self._replaced = make(prometheus.Counter, "replacements", "How often the predictor was replaced")
    self._failed = make(prometheus.Counter, "failed_replacements", "New predictors that could not be loaded")
    self._stage = make(prometheus.Gauge, "stage", "Stage of the predictor, from 0")
    self._stage.set(predictor.known.stage or 0)

  async def watch(self) -> None:
    """Replaces the predictor when its folder changes; runs until it is cancelled."""
    root = self._root
    while root is not None:
      await asyncio.sleep(self._poll)
      version = await to_thread.run_sync(folder.latest_version, root) or ""  # also of a folder of `alma export`
      try:
        if version == self._refused:
          continue
        if version != self._ready[0].version:
          new = await to_thread.run_sync(lambda: load(folder.read(root), self._ready[0]))
          self._ready = await to_thread.run_sync(self._prepared, new)
          self._replaced.inc()
          self._stage.set(self._ready[0].known.stage or 0)
        self._refused = None
      except Exception as error:  # whatever is wrong with the new one, the old one goes on answering
        reason = " ".join(str(error).split())
        if (version or reason) != self._refused:
          self._refused = version or reason
          self._failed.inc()
          say(f"warning: the {f'predictor {version}' if version else 'next predictor'} is not used: {reason}")

  async def predict(self, request: Request) -> Response:
    """Answers POST /predict."""
    try:
      body = await self._body(request)
      began = time.perf_counter()
      predictor, sizes, quick = self._ready  # one predictor for the whole request
      kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
      given = predictor.requested(body, kind)
      num = len(given)
      if num > self._max_batch:
        raise Refused(413, f"the request has {num} examples, but at most {self._max_batch} are allowed; send several "
                           "requests.")
      if num <= quick:
        found = predictor.answered(given, sizes)
      else:
        self._limiter = self._limiter or CapacityLimiter(2)  # one computes while the other reads and writes
        found = await to_thread.run_sync(predictor.answered, given, sizes, limiter=self._limiter)
      found["predictor"] = predictor.version or None
      answer = Response(json.dumps(found).encode(), media_type=JSON)
    except Refused as error:
      self._requests.labels(str(error.status)).inc()
      headers = {"Connection": "close"} if error.status == 408 else None
      return Response(json.dumps({"detail": str(error)}).encode(), error.status, headers, media_type=JSON)
    except Exception:
      self._requests.labels("500").inc()
      raise
    self._answered.inc()
    self._examples.inc(num)
    self._seconds.observe(time.perf_counter() - began)
    return answer

  def health(self) -> dict[str, Any]:
    """What GET /healthz answers."""
    entries = self._ready[0].known.entries
    names = ("stage", "megabatch", "task", "input", "classes", "class_names", "metric", "metrics", "example_shape",
             "dtype", "normalization")
    kept = {name: entries.get(name) for name in names}
    return dict(status="ok", predictor=self._ready[0].version or None, max_batch=self._max_batch, **kept)

  def _prepared(self, predictor: Predictor) -> tuple[Predictor, list[int], int]:
    """(predictor, compiled sizes of batches, examples that are predicted at once without a thread)."""
    return predictor, *predictor.prepared(self._max_batch)

  async def _body(self, request: Request) -> bytes:
    """The body. If it is too long it is read, but not kept: most clients write it all before they read an answer."""
    parts, size = [], 0
    try:
      async with asyncio.timeout(self._timeout):
        async for part in request.stream():
          size += len(part)
          if size <= self._max_bytes:
            parts.append(part)
    except TimeoutError as error:
      raise Refused(408, f"the body did not arrive within {self._timeout:g} seconds; send it faster, or in smaller "
                          "requests.") from error
    except ClientDisconnect as error:
      raise Refused(400, "the connection was closed before the end of the body.") from error
    if size > self._max_bytes:
      raise Refused(413, f"the body should have at most {self._max_bytes} bytes; send fewer examples.")
    return b"".join(parts)


def app(service: Service) -> FastAPI:
  """The application of a service. It has no page of documentation, because FastAPI's loads scripts from elsewhere."""

  @contextlib.asynccontextmanager
  async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    watching = asyncio.create_task(service.watch())
    yield
    watching.cancel()

  made = FastAPI(title="alma_jax", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
  async def health(_: Request) -> Response:
    return Response(json.dumps(service.health()).encode(), media_type=JSON)

  async def metrics(_: Request) -> Response:
    return Response(prometheus.generate_latest(service.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

  async def page(_: Request) -> Response:
    return Response(content, media_type="text/html")

  content = pathlib.Path(__file__).with_name("page.html").read_text(encoding="utf-8")
  made.add_route("/", page, methods=["GET"])
  made.add_route("/predict", service.predict, methods=["POST"])
  made.add_route("/healthz", health, methods=["GET"])  # also answers HEAD, unlike @made.get
  made.add_route("/metrics", metrics, methods=["GET"])
  return made
