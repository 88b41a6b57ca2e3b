"""`alma serve`: answers, limits, bad requests, and the replacement of the predictor while requests arrive."""
import contextlib
import http.client
import io
import json
import re
import socket
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image
from runs import alma, blobs, small_config

import alma_jax
from alma_jax import export, web
from alma_jax.predictors import folder

pytest.importorskip("fastapi")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  path = tmp_path_factory.mktemp("serve") / "run"
  return alma_jax.run(small_config(log__predictor=True), path, data=(*blobs(120), *blobs(30, seed=1)))


@contextlib.contextmanager
def running(app, timeout, connections=128):
  """The port of an application that a thread of this process serves."""
  with web.listen("127.0.0.1", 0) as sock:
    server = web.server(app, timeout, connections)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    while not server.started:
      time.sleep(0.01)
    try:
      yield sock.getsockname()[1]
    finally:
      server.should_exit = True
      thread.join()


@contextlib.contextmanager
def serving(root, max_batch=8, max_bytes=10_000, timeout=30, connections=128):
  """The port of a service of the predictor in a folder, in a thread of this process."""
  from alma_jax.predictors import predictor, service
  made = service.Service(predictor.load(folder.read(root)), root, max_batch, max_bytes, timeout, 0.05)
  with running(service.app(made), timeout, connections) as port:
    yield port


@pytest.fixture(scope="module")
def port(run):
  with serving(run.path / "predictor") as port:
    yield port


def ask(port, body=None, kind="application/json", path="/predict", headers=None, method=None):
  """(status, answer); a dict is sent as JSON."""
  connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
  body = json.dumps(body).encode() if isinstance(body, dict) else body
  connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {"Content-Type": kind},
                     encode_chunked=bool(headers))
  answer = connection.getresponse()
  content = answer.read()
  connection.close()
  return answer.status, json.loads(content) if content[:1] in b"{[" and content else content.decode()


def test_all_kinds_of_bodies_are_answered_as_the_run_does(run, port):
  x = blobs(5, seed=2)[0]
  png = io.BytesIO()
  Image.fromarray(x[0]).save(png, "png")
  for body, kind, num in (({"inputs": x.tolist()}, "application/json", 5),
                          ({"inputs": x[..., None].tolist()}, "application/json; charset=utf-8", 5),
                          (x.tobytes(), "application/octet-stream", 5), (png.getvalue(), "image/png", 1)):
    status, answer = ask(port, body, kind)
    assert status == 200, answer
    np.testing.assert_allclose(answer["probabilities"], run.predict(x[:num]), atol=2e-6)
    assert answer["classes"] == run.predict(x[:num]).argmax(-1).tolist()
    assert answer["predictor"] == folder.latest_version(run.path / "predictor")


def test_an_exported_predictor_has_no_version(run, tmp_path):
  export.export(run, out=tmp_path / "export")
  with serving(tmp_path / "export") as port:
    assert ask(port, path="/healthz")[1]["predictor"] is None
    assert ask(port, {"inputs": blobs(1)[0].tolist()})[1]["predictor"] is None


def test_the_page_needs_what_the_service_answers(port):
  """The page loads nothing from elsewhere, and reads these entries."""
  status, page = ask(port, path="/")
  assert (status, page.count("<html"), "http" in page.replace("http-equiv", "")) == (200, 1, False)
  health = ask(port, path="/healthz")[1]
  assert {"example_shape", "dtype", "normalization", "class_names", "megabatch", "metrics"} <= set(health)
  assert set(re.findall(r"facts\.(\w+)", page)) <= set(health)


def test_health_and_metrics(run, port):
  status, health = ask(port, path="/healthz")
  assert (status, health["status"], health["stage"], health["classes"]) == (200, "ok", 1, 3)
  assert health["metrics"]["error"] == run.metrics["error"][-1]
  read = lambda: {line.split()[0]: float(line.split()[1]) for line in ask(port, path="/metrics")[1].splitlines()
                  if not line.startswith("#")}
  before = read()
  ask(port, {"inputs": blobs(3)[0].tolist()})
  ask(port, {"inputs": []})
  after = read()
  change = lambda name: after[name] - before.get(name, 0)
  assert change('alma_requests_total{status="200"}') == 1
  assert change('alma_requests_total{status="400"}') == 1
  assert (change("alma_examples_total"), change("alma_predict_seconds_count")) == (3, 1)
  assert after["alma_stage"] == 1


def stored(kind):
  """An image file of the right size."""
  file = io.BytesIO()
  Image.fromarray(blobs(1)[0][0]).save(file, kind)
  return file.getvalue()


def big(side):
  """A PNG file of side x side black pixels, whose data are left out beyond what a header needs."""
  file = io.BytesIO()
  Image.new("1", (1, 1)).save(file, "png")
  data = file.getvalue()
  header = b"IHDR" + side.to_bytes(4, "big") * 2 + data[24:29]
  return data[:12] + header + zlib.crc32(header).to_bytes(4, "big") + data[33:]


X = blobs(9)[0]
REQUESTS = {
    "a path": ({"inputs": "/etc/passwd"}, "application/json", 400, "should be a list of examples"),
    "no list": ({"path": "run"}, "application/json", 400, 'should be {"inputs": [...]}'),
    "an unknown field": ({"inputs": X[:1].tolist(), "task": 2}, "application/json", 400, "the unknown field 'task'"),
    "no json": (b"{", "application/json", 400, "is not JSON"),
    "deep json": (b"[" * 9000, "application/json", 400, "is not JSON"),
    "no examples": ({"inputs": []}, "application/json", 400, "not empty"),
    "ragged": ({"inputs": [[1, 2], [3]]}, "application/json", 400, "examples of equal shapes"),
    "strings": ({"inputs": [["a"]]}, "application/json", 400, "dtype <U1; give numbers"),
    "other shape": ({"inputs": X[:2, :5].tolist()}, "application/json", 400, "shape [5, 6], but the predictor takes"),
    "not whole": ({"inputs": (X[:1] / 255).tolist()}, "application/json", 400, "dtype float64, but the predictor"),
    "too large": ({"inputs": (X[:1].astype(int) + 256).tolist()}, "application/json", 400, "outside of 0 to 255"),
    "nan": (b'{"inputs": [[NaN]]}', "application/json", 400, "has examples of shape [1]"),
    "texts": ({"texts": ["a"]}, "application/json", 400, 'should be {"inputs": [...]}'),
    "too many": ({"inputs": X.tolist()}, "application/json", 413, "at most 8 are allowed"),
    "too long": (b" " * 10_001, "application/json", 413, "at most 10000 bytes"),
    "half an example": (b"1" * 37, "application/octet-stream", 400, "an example has 36"),
    "no bytes": (b"", "application/octet-stream", 400, "an example has 36"),
    "pickle": (b"\x80\x04N.", "application/x-pickle", 415, "the content type is application/x-pickle"),
    "a form": (b"inputs=1", "application/x-www-form-urlencoded", 415, "the content type is"),
    "no image": (b"no", "image/png", 400, "no image"),
    "a rare format": (stored("TGA"), "image/x-tga", 400,
                      "send a file of the formats PNG, JPEG, GIF, WEBP, BMP, TIFF, AVIF, PPM."),
    "another rare format": (stored("PCX"), "image/png", 400, "send a file of the formats PNG, JPEG, GIF"),
    "a bomb": (big(5000), "image/png", 413, "has 5000x5000 pixels"),
    "a bomb that Pillow refuses": (big(20_000), "image/png", 413, "has more than 16777216 pixels"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_bad_requests_get_one_sentence(port, name):
  body, kind, status, sentence = REQUESTS[name]
  found, answer = ask(port, body, kind)
  assert found == status
  assert sentence in answer["detail"]


def test_limits_hold_for_bodies_of_unknown_length(port):
  parts = (b" " * 4000 for _ in range(10))
  status, answer = ask(port, parts, headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
  assert (status, "at most 10000 bytes" in answer["detail"]) == (413, True)
  assert ask(port, path="/predict")[0] == 405
  assert ask(port, path="/docs")[0] == ask(port, path="/openapi.json")[0] == 404


def test_a_client_that_writes_a_body_that_is_too_long_gets_an_answer(port):
  """It reads the answer after it has written all, which is more than the buffers of the connection hold."""
  status, answer = ask(port, b" " * 20_000_000, headers={"Content-Type": "application/json", "Connection": "close"})
  assert (status, "at most 10000 bytes" in answer["detail"]) == (413, True)


POST = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
STALLS = {"nothing": b"", "half a head": POST[:40], "half a body": POST, "the body of another answer": GET[:-2]
          + b"Content-Length: 1000\r\n\r\n{", "half of the next request": GET + GET[:20], "an answer": GET}


def stalled(port, sent):
  """A connection whose client has sent this, and is silent."""
  sock = socket.create_connection(("127.0.0.1", port), timeout=10)
  sock.sendall(sent)
  return sock


def rest(sock):
  """What is received until the connection is closed."""
  received = b""
  with contextlib.suppress(ConnectionResetError):
    while part := sock.recv(10_000):
      received += part
  return received


def is_closed(sock):
  sock.setblocking(False)
  try:
    return sock.recv(1) == b""
  except BlockingIOError:
    return False
  except ConnectionResetError:
    return True


def test_clients_that_stop_are_not_waited_for(run):
  with serving(run.path / "predictor", timeout=1) as port:
    socks = {(name, i): stalled(port, sent) for name, sent in STALLS.items() for i in range(5)}
    assert ask(port, {"inputs": X[:1].tolist()})[0] == 200
    began = time.monotonic()
    answers = {key: rest(sock) for key, sock in socks.items()}
    assert time.monotonic() - began < 9  # sock.recv raises TimeoutError after 10 seconds
    for (name, _), answer in answers.items():
      status = {"nothing": b"", "half a head": b"", "half a body": b"HTTP/1.1 408"}.get(name, b"HTTP/1.1 200")
      assert (answer[:12], answer.count(b"HTTP/1.1")) == (status, int(bool(status))), name
    assert b"did not arrive within 1 seconds" in answers["half a body", 0]
    assert 'alma_requests_total{status="408"} 5.0' in ask(port, path="/metrics")[1]


def test_a_client_that_does_not_read_is_not_waited_for():
  size = 20_000_000  # more than the buffers of a connection hold

  async def app(scope, receive, send):
    if scope["type"] == "lifespan":
      for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})
      return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    await send({"type": "http.response.body", "body": bytes(size)})

  with running(app, timeout=1) as port:
    slow, silent, double = stalled(port, GET), stalled(port, GET), stalled(port, GET + GET)
    received = 0
    for _ in range(10):  # longer than the timeout, but it goes on
      received += len(slow.recv(1_000_000, socket.MSG_WAITALL))
      time.sleep(0.2)
    assert received + len(rest(slow)) > size
    assert len(rest(silent)) < size
    assert len(rest(double)) < size


def test_connections_beyond_the_limit_take_the_place_of_those_that_wait(run):
  with serving(run.path / "predictor", connections=10) as port:
    first = [stalled(port, [b"", POST[:40], POST][i % 3]) for i in range(10)]
    time.sleep(1.2)  # the server looks every second
    more, end = [stalled(port, POST) for _ in range(5)], time.monotonic() + 10
    while sum(is_closed(sock) for sock in first) < 5 and time.monotonic() < end:
      time.sleep(0.05)
    assert (sum(is_closed(sock) for sock in first), sum(is_closed(sock) for sock in more)) == (5, 0)
    assert ask(port, {"inputs": X[:1].tolist()})[0] == 200
    for sock in first + more:
      sock.close()


def test_every_page_answers_head(port):
  for path in ("/healthz", "/metrics"):
    assert ask(port, path=path, method="HEAD") == (200, "")


def test_a_torn_pointer_is_counted_and_reported_once(run, tmp_path, monkeypatch):
  from alma_jax.predictors import service
  root, said = tmp_path / "predictor", []
  monkeypatch.setattr(service, "say", said.append)
  version = folder.publish(root, 0, folder.read(run.path / "predictor").files)
  content = (root / "latest.json").read_bytes()
  failed = lambda port: float(re.search(r"^alma_failed_replacements_total (.*)", ask(port, path="/metrics")[1],
                                        re.MULTILINE)[1])
  with serving(root) as port:
    for times, torn in enumerate((content[:40], b"[]", None), 1):
      (root / "latest.json").write_bytes(torn) if torn else (root / "latest.json").unlink()
      end = time.monotonic() + 20
      while failed(port) < times and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)  # six more looks
    assert failed(port) == 3
    assert ask(port, path="/healthz")[1]["predictor"] == version
  assert len(said) == 3
  assert all(re.match(r"warning: the next predictor is not used: .*(cannot be read \(|there is no predictor in)", s)
             for s in said)


def test_no_request_fails_while_the_predictor_is_replaced(run, tmp_path):
  stored, root = folder.read(run.path / "predictor"), tmp_path / "predictor"
  folder.publish(root, 0, stored.files)
  found, done = [], threading.Event()

  def load(port):
    while not done.is_set():
      found.append(ask(port, {"inputs": X[:1].tolist()}))

  def wait(port, condition):
    end = time.monotonic() + 60
    while not condition(ask(port, path="/healthz")[1], ask(port, path="/metrics")[1]):
      assert time.monotonic() < end
      time.sleep(0.02)

  with serving(root) as port:
    threads = [threading.Thread(target=load, args=(port,)) for _ in range(2)]
    for thread in threads:
      thread.start()
    try:
      for i in range(1, 5):
        files = dict(stored.files)
        with np.load(io.BytesIO(stored.files[folder.WEIGHTS])) as file:
          content = io.BytesIO()
          np.savez(content, **{name: file[name] * np.float32(1 + i) for name in file.files})
        files[folder.WEIGHTS] = content.getvalue()
        version = folder.publish(root, i, files)
        wait(port, lambda health, _, version=version: health["predictor"] == version)
      folder.publish(root, 5, {**files, folder.WEIGHTS: b"no arrays"})
      wait(port, lambda _, metrics: "alma_failed_replacements_total 1.0" in metrics)
    finally:
      done.set()
      for thread in threads:
        thread.join()
    assert ask(port, path="/healthz")[1]["predictor"] == version  # the last one that could be loaded
    assert "alma_replacements_total 4.0" in ask(port, path="/metrics")[1]
  assert {status for status, _ in found} == {200}
  answers = {answer["predictor"]: answer["probabilities"] for _, answer in found}
  assert len(answers) == 5
  assert len({json.dumps(each) for each in answers.values()}) == 5
  assert all(answer["probabilities"] == answers[answer["predictor"]] for _, answer in found)  # never a mixture


def test_a_port_in_use_and_an_unknown_host(run):
  workdir = f"--workdir={run.path}"
  with socket.create_server(("127.0.0.1", 0)) as busy:
    port = busy.getsockname()[1]
    for args, sentence in (
        ([workdir, f"--port={port}"], f"port {port} of 127.0.0.1 is in use; choose another --port."),
        ([workdir, "--host=no.such.host.invalid"], "cannot be bound")):
      done = alma("serve", *args)
      assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
      assert sentence in done.stderr
