"""The HTTP service of a predictor: /predict, /healthz and /metrics.

A request sends examples, never a path or a pickle. The predictor is replaced between two requests: the new one is
loaded, compiled and tried in a thread while the old one answers.
"""
import asyncio
import contextlib
import io
import json
import pathlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import prometheus_client as prometheus
from anyio import CapacityLimiter, move_on_after, to_thread
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from alma_jax.data import examples, image_file
from alma_jax.data.form import Form
from alma_jax.data.task_types import is_meant
from alma_jax.errors import BadInput
from alma_jax.files import parse_json
from alma_jax.messages import brief, say
from alma_jax.predictors import folder, inputs, texts
from alma_jax.predictors.predictor import Predictor

_STEP = 4  # batches are padded to powers of it, each of which is compiled
_QUICK = 2e-3  # seconds of a batch that is computed without leaving the event loop
_MOST_PIXELS = 2**24  # of an image file; decoding more would take too much memory
_DROP_BYTES, _DROP_SECONDS = 2**28, 10.0  # of a body that is too long, before it is refused
_JSON = "application/json"


class _Refused(Exception):
  """A request that is answered with an HTTP status and a sentence."""

  def __init__(self, status: int, sentence: str):
    super().__init__(sentence)
    self.status = status


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
    self._refused = ""  # the version that could not be loaded, or the reason why none was found
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
    self._stage.set(predictor.facts.get("stage") or 0)

  async def watch(self) -> None:
    """Replaces the predictor when its folder changes; runs until it is cancelled."""
    while self._root is not None:
      await asyncio.sleep(self._poll)
      version = ""
      try:
        version = await to_thread.run_sync(folder.current_version, self._root)
        if version == self._refused:
          continue
        if version != self._ready[0].version:
          self._ready = await to_thread.run_sync(self._next)
          self._replaced.inc()
          self._stage.set(self._ready[0].facts.get("stage") or 0)
        self._refused = ""
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
      if predictor.is_language:
        found, num = await self._texts(predictor, body, kind)
      else:
        x = _examples(body, kind, predictor)
        num = len(x)
        self._check_number(num)
        if num <= quick:
          found = _classified(predictor, sizes, x)
        else:
          found = await self._in_thread(_classified, predictor, sizes, x)
      found["predictor"] = predictor.version or None
      answer = Response(json.dumps(found).encode(), media_type=_JSON)
    except _Refused as error:
      self._requests.labels(str(error.status)).inc()
      headers = {"Connection": "close"} if error.status == 408 else None
      return Response(json.dumps({"detail": str(error)}).encode(), error.status, headers, media_type=_JSON)
    except Exception:
      self._requests.labels("500").inc()
      raise
    self._answered.inc()
    self._examples.inc(num)
    self._seconds.observe(time.perf_counter() - began)
    return answer

  def health(self) -> dict[str, Any]:
    """What GET /healthz answers."""
    facts = self._ready[0].facts
    names = ("stage", "megabatch", "task", "input", "classes", "class_names", "metrics")
    kept = {name: facts.get(name) for name in names}
    return dict(status="ok", predictor=self._ready[0].version or None, max_batch=self._max_batch, **kept)

  def _next(self) -> tuple[Predictor, list[int], int]:
    assert self._root is not None
    return self._prepared(Predictor(folder.read(self._root), self._ready[0]))

  def _prepared(self, predictor: Predictor) -> tuple[Predictor, list[int], int]:
    """(predictor, compiled sizes of batches, examples that are predicted at once without a thread)."""
    if predictor.is_language:
      predictor.compile(predictor.batch_size)
      return predictor, [predictor.batch_size], 0
    most = min(self._max_batch, predictor.batch_size)
    sizes = [1]
    while sizes[-1] < most:
      sizes.append(min(sizes[-1] * _STEP, most))
    quick = 0
    for size in sizes:
      x = np.zeros((size, *predictor.shape), predictor.dtype)
      predictor(x, size)
      began = time.perf_counter()
      predictor(x, size)
      if time.perf_counter() - began < _QUICK:
        quick = size
    return predictor, sizes, quick

  async def _texts(self, predictor: Predictor, body: bytes, kind: str) -> tuple[dict[str, Any], int]:
    given = _entry(body, kind, "texts", predictor)
    if not isinstance(given, list) or not all(isinstance(text, str) and text for text in given) or not given:
      raise _Refused(400, "`texts` should be a list of strings that are not empty.")
    self._check_number(len(given))
    given = [text.encode("utf-8", "replace").decode() for text in given]  # JSON can hold halves of characters
    return await self._in_thread(_scored, predictor, given), len(given)

  async def _in_thread(self, work: Any, *args: Any) -> Any:
    self._limiter = self._limiter or CapacityLimiter(2)  # one computes while the other reads and writes
    return await to_thread.run_sync(work, *args, limiter=self._limiter)

  def _check_number(self, num: int) -> None:
    if num > self._max_batch:
      raise _Refused(413, f"the request has {num} examples, but at most {self._max_batch} are allowed; send several "
                          "requests.")

  async def _body(self, request: Request) -> bytes:
    """The body, of which not more is kept than is allowed."""
    refused = _Refused(413, f"the body should have at most {self._max_bytes} bytes; send fewer examples.")
    announced, stream = request.headers.get("content-length", "0"), request.stream()
    if not announced.isdecimal() or int(announced) > self._max_bytes:
      if "expect" not in request.headers:  # else the client waits for the answer before it sends the body
        await _drop(stream)
      raise refused
    parts, size = [], 0
    try:
      async with asyncio.timeout(self._timeout):
        async for part in stream:
          size += len(part)
          if size > self._max_bytes:
            break
          parts.append(part)
    except TimeoutError as error:
      raise _Refused(408, f"the body did not arrive within {self._timeout:g} seconds; send it faster, or in smaller "
                          "requests.") from error
    except ClientDisconnect as error:
      raise _Refused(400, "the connection was closed before the end of the body.") from error
    if size > self._max_bytes:
      await _drop(stream)
      raise refused
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
    return Response(json.dumps(service.health()).encode(), media_type=_JSON)

  async def metrics(_: Request) -> Response:
    return Response(prometheus.generate_latest(service.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

  made.add_route("/predict", service.predict, methods=["POST"])
  made.add_route("/healthz", health, methods=["GET"])  # also answers HEAD, unlike @made.get
  made.add_route("/metrics", metrics, methods=["GET"])
  return made


async def _drop(stream: AsyncIterator[bytes]) -> None:
  """Reads the rest of a body that is refused, up to a limit.

  Most clients write the whole body before they read the answer. If the service closed the connection earlier, they
  would see that it is reset, and no answer.
  """
  size = 0
  with contextlib.suppress(ClientDisconnect), move_on_after(_DROP_SECONDS):
    async for part in stream:
      size += len(part)
      if size > _DROP_BYTES:
        return


def _entry(body: bytes, kind: str, name: str, predictor: Predictor) -> Any:
  """The entry `name` of a JSON body; besides it a body may only say which task it belongs to."""
  if kind != _JSON:
    raise _Refused(415, f"the content type is {kind or 'missing'}; send {_JSON}.")
  try:
    tree = parse_json(body, halves=True)
  except ValueError as error:
    raise _Refused(400, f"the body is not JSON ({str(error)[:100]}).") from error
  if not isinstance(tree, dict) or name not in tree:
    raise _Refused(400, f'the body should be {{"{name}": [...]}}.')
  task = predictor.facts.get("task")
  unknown = [key for key in tree if key not in ((name, "task") if task else (name,))]
  if unknown:
    raise _Refused(400, f'the body has the unknown field {brief(unknown[0])}; it should be {{"{name}": [...]}}'
                        f"{', perhaps with `task`' if task else ''}.")
  if task and "task" in tree and not is_meant(tree["task"], task["number"], task["name"]):
    raise _Refused(400, f"the body is for task {json.dumps(tree['task'])[:100]}, but this service answers for task "
                        f"{task['number']} ({task['name']!r}); ask the service of that task.")
  return tree[name]


def _examples(body: bytes, kind: str, predictor: Predictor) -> np.ndarray:
  """The examples [N, ...] of a request."""
  form = inputs.form_of(predictor.facts)
  what = "`inputs`" if kind == _JSON else "the image" if kind.startswith("image/") else "the body"
  try:
    with examples.named(what):
      if kind == _JSON:
        return form.fit(_array(_entry(body, kind, "inputs", predictor)))
      if kind == "application/octet-stream":
        size = int(np.prod(predictor.shape)) * predictor.dtype.itemsize
        if not body or len(body) % size:
          raise _Refused(400, f"the body has {len(body)} bytes, but an example has {size}; send whole examples.")
        return form.fit(np.frombuffer(body, predictor.dtype).reshape(-1, *predictor.shape))
      if kind.startswith("image/"):
        return _of_image(body, form)
  except BadInput as error:
    raise _Refused(400, str(error)) from error
  raise _Refused(415, f"the content type is {kind or 'missing'}; send {_JSON}, application/octet-stream or image/....")


def _array(given: Any) -> np.ndarray:
  """Nested lists of numbers as an array."""
  if not isinstance(given, list) or not given:
    raise _Refused(400, "`inputs` should be a list of examples that is not empty.")
  try:
    return np.array(given)
  except (ValueError, OverflowError) as error:
    raise _Refused(400, "`inputs` should hold numbers, in examples of equal shapes.") from error


def _of_image(body: bytes, form: Form) -> np.ndarray:
  """The example [1, ...] of an image file; its size is checked before it is decoded."""
  from PIL import Image
  try:
    with Image.open(io.BytesIO(body), formats=image_file.readable(image_file.SERVED)) as image:
      size = image.size
  except Image.DecompressionBombError as error:  # Pillow itself refuses to open it
    raise _Refused(413, f"the image has more than {_MOST_PIXELS} pixels; send a smaller one.") from error
  except Exception as error:  # decoders raise many kinds
    raise _Refused(400, "the body is no image that can be read; send a file of the formats "
                   f"{', '.join(image_file.SERVED)}.") from error
  if size[0] * size[1] > _MOST_PIXELS:
    raise _Refused(413, f"the image has {size[0]}x{size[1]} pixels, more than {_MOST_PIXELS}; send a smaller one.")
  return examples.Reader(form, labelled=False).image(body, image_file.SERVED)


def _classified(predictor: Predictor, sizes: Sequence[int], x: np.ndarray) -> dict[str, Any]:
  """Classes and probabilities of examples, in batches of the compiled sizes."""
  classes, probabilities = [], []
  for start in range(0, len(x), sizes[-1]):
    part = x[start:start + sizes[-1]]
    found = predictor(part, next(size for size in sizes if size >= len(part)))
    classes += found[0].tolist()
    probabilities += found[1].tolist()
  names = predictor.facts.get("class_names")
  return dict(classes=[names[k] for k in classes] if names else classes, probabilities=probabilities)


def _scored(predictor: Predictor, given: Sequence[str]) -> dict[str, Any]:
  found = [texts.score(predictor, predictor.tokenizer, text, predictor.facts["sequence_length"], predictor.batch_size)
           for text in given]
  return dict(texts=[dict(num_tokens=each.num_tokens, log_probability=each.log_probability,
                          perplexity=each.perplexity, next=each.next_token[0], p_next=each.next_token[1])
                     for each in found])
