"""`alma serve`: answers, limits, bad requests, and the replacement of the predictor while requests arrive."""
import contextlib
import http.client
import io
import json
import socket
import threading
import time

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
def serving(root, max_batch=8, max_bytes=10_000):
  """The port of a service of the predictor in a folder, in a thread of this process."""
  import uvicorn

  from alma_jax.predictors import program, service
  made = service.Service(program.Predictor(folder.read(root)), root, max_batch, max_bytes, 0.05)
  with web.listen("127.0.0.1", 0) as sock:
    server = uvicorn.Server(uvicorn.Config(service.app(made), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    while not server.started:
      time.sleep(0.01)
    yield sock.getsockname()[1]
    server.should_exit = True
    thread.join()


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


def big():
  file = io.BytesIO()
  Image.new("1", (5000, 5000)).save(file, "png")
  return file.getvalue()


X = blobs(9)[0]
REQUESTS = {
    "a path": ({"inputs": "/etc/passwd"}, "application/json", 400, "should be a list of examples"),
    "no list": ({"path": "run"}, "application/json", 400, 'should be {"inputs": [...]}'),
    "an unknown field": ({"inputs": X[:1].tolist(), "task": 2}, "application/json", 400, "the unknown field 'task'"),
    "no json": (b"{", "application/json", 400, "is not JSON"),
    "deep json": (b"[" * 9000, "application/json", 400, "is not JSON"),
    "no examples": ({"inputs": []}, "application/json", 400, "not empty"),
    "ragged": ({"inputs": [[1, 2], [3]]}, "application/json", 400, "examples of equal shapes"),
    "strings": ({"inputs": [["a"]]}, "application/json", 400, "should hold numbers"),
    "other shape": ({"inputs": X[:2, :5].tolist()}, "application/json", 400, "has shape [2, 5, 6]"),
    "not whole": ({"inputs": (X[:1] / 255).tolist()}, "application/json", 400, "whole numbers from 0 to 255"),
    "too large": ({"inputs": (X[:1].astype(int) + 256).tolist()}, "application/json", 400, "from 0 to 255"),
    "nan": (b'{"inputs": [[NaN]]}', "application/json", 400, "whole numbers"),
    "texts": ({"texts": ["a"]}, "application/json", 400, 'should be {"inputs": [...]}'),
    "too many": ({"inputs": X.tolist()}, "application/json", 413, "at most 8 are allowed"),
    "too long": (b" " * 10_001, "application/json", 413, "at most 10000 bytes"),
    "half an example": (b"1" * 37, "application/octet-stream", 400, "an example has 36"),
    "no bytes": (b"", "application/octet-stream", 400, "an example has 36"),
    "pickle": (b"\x80\x04N.", "application/x-pickle", 415, "the content type is application/x-pickle"),
    "a form": (b"inputs=1", "application/x-www-form-urlencoded", 415, "the content type is"),
    "no image": (b"no", "image/png", 400, "no image"),
    "a bomb": (big(), "image/png", 413, "has 5000x5000 pixels"),
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


def test_a_client_that_asks_first_sends_no_body(port):
  with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
    sock.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\nExpect: 100-continue\r\n\r\n")
    assert sock.recv(1000).startswith(b"HTTP/1.1 413")


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


def test_bad_input_of_the_command(run, tmp_path):
  workdir = f"--workdir={run.path}"
  with socket.create_server(("127.0.0.1", 0)) as busy:
    port = busy.getsockname()[1]
    for args, sentence in (
        ([workdir, f"--port={port}"], f"port {port} of 127.0.0.1 is in use; choose another --port."),
        ([workdir, "--port=70000"], "--port=70000 should be 0 to 65535"),
        ([workdir, "--host=no.such.host.invalid"], "cannot be bound"),
        ([workdir, "--max_batch=0"], "--max_batch=0 should be above 0"),
        ([f"--workdir={tmp_path}/none", "--port=0"], "neither a run nor a predictor")):
      done = alma("serve", *args)
      assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
      assert sentence in done.stderr
