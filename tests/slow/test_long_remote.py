"""Remote folders on S3: kills, lost machines and outages."""
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import fsspec
import pytest
from runs import ROOT, assert_same_run, launch

import alma_jax
from alma_jax.store import remote

pytestmark = pytest.mark.slow

# A run that has little patience.
SESSION = """
import sys
from alma_jax import main
from alma_jax.store import lease, remote

lease.SECONDS, lease.BEAT, remote.PATIENCE = 3.0, 0.5, 3.0
if __name__ == "__main__":
  sys.exit(main.main(sys.argv[1:]))
"""

FLAGS = ("--config.stream.num_megabatches=4", "--config.model.width=4", "--config.train.epochs=4",
         "--config.checkpoint.seconds=0", "--config.log.tensorboard=false")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
  """The environment of machines that share what they compile, so that a killed one damages no other test's programs."""
  return dict(JAX_COMPILATION_CACHE_DIR=str(tmp_path_factory.mktemp("programs")), PYTHONPATH=str(ROOT))


class Server:
  """An S3 server, and machines that run a config on it."""

  def __init__(self, tmp_path, monkeypatch, environment):
    from moto.server import ThreadedMotoServer
    self._make = lambda port: ThreadedMotoServer("127.0.0.1", port, verbose=False)
    self._server = self._make(0)
    self._server.start()
    _, self._port = self._server.get_host_and_port()
    self.endpoint = f"http://127.0.0.1:{self._port}"
    for key, value in dict(AWS_ENDPOINT_URL=self.endpoint, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b",
                           AWS_DEFAULT_REGION="us-east-1").items():
      monkeypatch.setenv(key, value)
    self.fs = fsspec.filesystem("s3", endpoint_url=self.endpoint, use_listings_cache=False, skip_instance_cache=True)
    urllib.request.urlopen(f"{self.endpoint}/moto-api/reset", b"")  # servers of one process share their buckets
    self.fs.mkdir("bucket")
    self._script = tmp_path / "session.py"
    self._script.write_text(SESSION)
    self._path, self._environment = tmp_path, environment

  def start(self, machine):
    args = ["--config=digits:gens", "--config.devices=1", *FLAGS, "--workdir=s3://bucket/x"]
    environment = os.environ | self._environment | dict(XDG_CACHE_HOME=str(self._path / machine))
    return subprocess.Popen([sys.executable, self._script, *args], cwd=self._path, env=environment,
                            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

  def run(self, machine):
    process = self.start(machine)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors

  def folder(self, machine):
    return self._path / machine / "alma_jax/remote/s3/bucket/x"

  def num_checkpoints(self):
    """Checkpoints in the store so far."""
    try:
      names = remote.parse_manifest(self.fs.cat_file("bucket/x/.mirror/manifest.json")).files
    except FileNotFoundError:
      return 0
    return max((int(name.split("/")[1]) for name in names if name.startswith("checkpoints/") and "history" not in name),
               default=0)

  def stop(self):
    self._server.stop()

  def restart(self):
    self._server = self._make(self._port)
    self._server.start()


@pytest.fixture
def server(tmp_path, monkeypatch, programs):
  fsspec.get_filesystem_class("s3").clear_instance_cache()  # it would go on to another test's server
  made = Server(tmp_path, monkeypatch, programs)
  yield made
  made.stop()


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
  """The folder of an uninterrupted local run of what Server runs."""
  folder = tmp_path_factory.mktemp("digits") / "run"
  assert launch("digits:gens", *FLAGS, f"--workdir={folder}").returncode == 0
  return folder


def test_s3_second_run_and_a_machine_that_is_lost(server, digits):
  """While the first machine lives, a second one is refused; it takes over when the first one has been killed.

  tests/test_remote.py looks at each state of the store that a kill can leave, and resumes from two.
  """
  first = server.start("first")
  while server.num_checkpoints() < 1:
    assert first.poll() is None
    time.sleep(0.05)
  os.kill(first.pid, signal.SIGSTOP)  # as long as the second one takes to start
  second = server.start("second")
  while "waiting up to" not in (line := second.stderr.readline()):
    assert line
  os.kill(first.pid, signal.SIGCONT)
  _, errors = second.communicate(timeout=60)
  assert second.returncode == 2
  assert "error: the run folder s3://bucket/x is in use by a process on" in errors
  first.kill()
  first.communicate()
  code, errors = server.run("second")  # its folder is empty
  assert code == 0, errors
  assert "resuming" in errors
  assert_same_run(digits, server.folder("second"))


def test_s3_server_that_is_down(server, digits, tmp_path, monkeypatch):
  """One sentence and exit code 1; the same command goes on. A server that is down from the start is named as well."""
  process = server.start("machine")
  while server.num_checkpoints() < 2:
    assert process.poll() is None
    time.sleep(0.05)
  server.stop()
  _, errors = process.communicate(timeout=120)
  assert process.returncode == 1, errors
  assert errors.count("error: s3://bucket/x cannot be written: ") == 1
  assert "Traceback" not in errors
  code, errors = server.run("machine")
  assert code == 1
  assert errors.count("error: s3://bucket/x cannot be written: ") == 1
  server.restart()
  code, errors = server.run("machine")
  assert code == 0, errors
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
  assert_same_run(digits, alma_jax.load_run("s3://bucket/x").path)


def test_two_processes_share_the_local_copy(tmp_path, monkeypatch, programs):
  """Process 0 uploads what it has; a process that does not see its local copy is refused."""
  store = f"file://{tmp_path}/store/x"

  def together(*homes):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      port = free.getsockname()[1]
    args = [sys.executable, "-m", "alma_jax.main", "--config=digits:gens", *FLAGS, f"--workdir={store}",
            f"--coordinator=127.0.0.1:{port}", "--num_processes=2"]
    environment = os.environ | programs
    started = [subprocess.Popen([*args, f"--process_id={i}"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                text=True, cwd=ROOT, env=environment | dict(XDG_CACHE_HOME=str(tmp_path / home)))
               for i, home in enumerate(homes)]
    errors = [process.communicate(timeout=120)[1] for process in started]
    return [process.returncode for process in started], errors

  codes, errors = together("a", "b")
  assert codes == [2, 2], "\n".join(errors)
  assert any("set XDG_CACHE_HOME to a folder of a common file system" in each for each in errors)
  codes, errors = together("c", "c")
  assert codes == [0, 0], "\n".join(errors)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
  run, (local,) = alma_jax.load_run(store), (tmp_path / "c").rglob("summary.json")
  assert run.metrics["t"].tolist() == [1, 2, 3, 4]
  assert_same_run(local.parent, run.path)
