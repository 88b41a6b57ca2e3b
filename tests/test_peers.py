"""Processes of one run: they meet, compare, and notice when one ends."""
import contextlib
import os
import socket
import sys
import threading
import time
import types

import pytest
from runs import Closed, small_config

import alma_jax
from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.parallel import channel as connections
from alma_jax.parallel import peers
from alma_jax.parallel.channel import Channel
from alma_jax.runs import experiment, memory_check
from alma_jax.store import run_folder


def free_port():
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return free.getsockname()[1]


def together(num, work, seconds=10.0):
  """work(channel, number) in a thread for each of `num` processes that have met; their results or BadInput."""
  port, results = free_port(), [None] * num

  def run(number):
    channel = Channel(num, number, seconds)
    try:
      channel.listen(port) if number == 0 else channel.connect("127.0.0.1", port)
      results[number] = work(channel, number)
    except BadInput as error:
      results[number] = error

  threads = [threading.Thread(target=run, args=(number,)) for number in range(num)]
  for thread in reversed(threads):  # process 0 comes last
    thread.start()
    time.sleep(0.05)
  for thread in threads:
    thread.join(timeout=30)
  return results


@pytest.fixture
def ended(monkeypatch):
  """A list of the exit codes with which processes would have ended."""
  found = []
  monkeypatch.setattr(connections.os, "_exit", lambda code: found.append(code))
  return found


def test_all_processes_get_all_values(ended):
  def work(channel, number):
    gathered = [channel.gather("first", number), channel.gather("second", {"number": number})]
    channel.leave(None, 0)
    return gathered

  for found in together(3, work):
    assert found == [[0, 1, 2], [{"number": 0}, {"number": 1}, {"number": 2}]]
  assert not ended


class OfThread:
  """The connections of a process in tests whose processes are threads."""

  def __init__(self):
    self.of = threading.local()

  def gather(self, *args):
    return self.of.channel.gather(*args)


def test_settings_of_language_models_are_compared(monkeypatch, ended):
  """Some of their fields are tuples, which arrive as lists."""
  channels = OfThread()
  monkeypatch.setattr(peers, "_channel", channels)
  settings = [configs.language("sm"), configs.language("sm")]

  def work(channel, number):
    channels.of.channel = channel
    try:
      peers.compare("settings", experiment._settings(configs.parse(settings[number]), "runs/a", False))
    finally:
      channel._left = True

  assert together(2, work) == [None, None]
  settings[1].train.learning_rate = (1e-3, 2e-3)
  for found in together(2, work):
    assert str(found).endswith(
        "differ in settings: train.learning_rate is [0.004] in process 0 and [0.001, 0.002] in process 1.")


def test_what_one_process_refuses_all_refuse(monkeypatch, ended):
  channels = OfThread()
  monkeypatch.setattr(peers, "_channel", channels)

  def work(channel, number):
    def refuse():
      if number == 1:
        raise BadInput("there is too little memory.")
      return number

    channels.of.channel = channel
    try:
      assert peers.together("first", lambda: number) == number
      peers.together("second", refuse)
    finally:
      channel._left = True

  assert [str(found) for found in together(3, work)] == [
      "process 1 of this run cannot go on; its own message says why.", "there is too little memory.",
      "process 1 of this run cannot go on; its own message says why."]


def test_data_and_devices_are_compared_before_the_first_collective(tmp_path, arrays, monkeypatch):
  compared = []
  monkeypatch.setattr(peers, "compare", lambda what, facts: compared.append(what))

  def later(method):
    def call(*args):
      assert compared == ["settings", "data or devices"]
      return method(*args)
    return call

  monkeypatch.setattr(memory_check, "check", later(memory_check.check))
  monkeypatch.setattr(run_folder.RunFolder, "claim", later(run_folder.RunFolder.claim))
  alma_jax.run(small_config(), tmp_path, data=arrays)


def test_a_live_stream_is_refused_before_compute(tmp_path, monkeypatch):
  """Before the folder of the stream is looked at."""
  monkeypatch.setattr(experiment.jax, "process_count", lambda: 2)
  monkeypatch.setattr(peers, "compare", lambda what, facts: None)
  with pytest.raises(BadInput, match="is a live stream, which one process runs; start it without other processes"):
    alma_jax.run(small_config(dataset__name=f"live:{tmp_path / 'none'}", stream__num_megabatches=0), tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_a_difference_is_named_with_its_processes(monkeypatch):
  values = [{"rate": 1.0, "same": 1}, {"rate": 0.05, "same": 1}, {"rate": 1.0, "same": 1}]
  monkeypatch.setattr(peers, "_channel", types.SimpleNamespace(gather=lambda what, facts: values))
  with pytest.raises(BadInput, match=r"differ in settings: rate is 1.0 in processes 0, 2 and 0.05 in process 1\.$"):
    peers.compare("settings", values[0])
  values[1] = values[0]
  peers.compare("settings", values[0])


@pytest.mark.parametrize("leaving", [None, "there are no data."])
def test_the_end_of_a_process_is_noticed(ended, capfd, leaving):
  def work(channel, number):
    if number == 1:
      if leaving:
        channel.leave(leaving, 2)
      for link in channel._links.values():
        link._connection.shutdown(socket.SHUT_RDWR)
      channel._left = True
    else:
      until(lambda: ended)
      channel._left = True

  together(3, work)
  said = capfd.readouterr().err
  if leaving:
    assert ended[0] == 2
    assert "error: process 1 has stopped: there are no data." in said
  else:
    assert ended[0] == 1
    assert "has ended unexpectedly; run the command again, and it continues" in said


def test_a_wait_names_the_missing_processes_and_ends(monkeypatch, capfd):
  monkeypatch.setattr(connections, "_QUIET", 0.1)
  channel = Channel(3, 0, 0.5)
  with pytest.raises(BadInput, match=r"waited 0.5 s for processes 1, 2 of 3 to connect in vain; .* --peer_timeout"):
    channel.listen(free_port())
  assert "waiting for processes 1, 2 of 3" in capfd.readouterr().err
  with pytest.raises(BadInput, match=r"0.5 s for process 0 at .* \(Connection refused\) in vain"):
    Channel(3, 1, 0.5).connect("127.0.0.1", free_port())


def test_a_wait_for_data_ends_as_well(ended):
  def work(channel, number):
    if number == 0:
      channel.gather("data", 0)

  assert "waited 0.5 s for process 1 to report the data in vain; start all" in str(together(2, work, seconds=0.5)[0])


@contextlib.contextmanager
def gathering(num):
  """(port, problems) of a process 0 that gathers `num` in a thread; leaves once it has ended."""
  port, channel, problems = free_port(), Channel(num, 0, 10.0), []

  def listen():
    try:
      channel.listen(port)
    except BadInput as error:
      problems.append(str(error))

  thread = threading.Thread(target=listen)
  thread.start()
  try:
    yield port, problems
    thread.join(timeout=10)
    assert not thread.is_alive()
  finally:
    channel._left = True


def hello(port, number, num):
  link = _connected(port)
  link.sendall(b'{"hello": %d, "num": %d}\n' % (number, num))
  return link


def _connected(port):
  for _ in range(1000):
    with contextlib.suppress(OSError):
      return socket.create_connection(("127.0.0.1", port))
    time.sleep(0.01)
  raise AssertionError("nobody listens")


def until(condition):
  deadline = time.monotonic() + 10
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def join(port, number, num):
  """A process that meets the others in a thread; its channel."""
  channel = Channel(num, number, 10.0)
  channel._left = True  # its end is not an error
  thread = threading.Thread(target=channel.connect, args=("127.0.0.1", port))
  thread.start()
  return channel, thread


def test_strangers_block_nobody(monkeypatch):
  with gathering(2) as (port, problems), _connected(port) as stranger:
    stranger.sendall(b"GET / HTTP/1.1\r\n")
    assert stranger.recv(1) == b""
    join(port, 1, 2)[1].join(timeout=5)
  assert not problems
  monkeypatch.setattr(connections, "_HELLO", 0.2)
  with gathering(3) as (port, problems):
    with _connected(port) as stranger:
      _, first = join(port, 1, 3)
      stranger.settimeout(5)
      assert stranger.recv(1) == b""  # it is closed once its time is over
    _, second = join(port, 2, 3)
    for thread in (first, second):
      thread.join(timeout=5)
  assert not problems
  monkeypatch.setattr(connections, "_HELLO", 60.0)
  with gathering(2) as (port, problems), _connected(port):
    start = time.monotonic()
    _, thread = join(port, 1, 2)
    thread.join(timeout=5)
    assert time.monotonic() - start < 3


def test_a_process_that_is_started_again_takes_the_place_of_the_dead_one(capfd):
  with gathering(3) as (port, problems):
    hello(port, 1, 3).close()
    _, second = join(port, 2, 3)
    until(lambda: "process 1 has ended before all had connected" in capfd.readouterr().err)
    assert second.is_alive()  # it waits for the first
    _, first = join(port, 1, 3)
    for thread in (first, second):
      thread.join(timeout=5)
      assert not thread.is_alive()
  assert not problems


@pytest.mark.parametrize(("num", "hellos", "sentence"), [
    (2, [(1, 3)], "--num_processes is 3 for process 1 and 2 for process 0; start all with the same."),
    (2, [(0, 2)], "two processes have --process_id=0; start them with 0 to 1, each once."),
    (3, [(1, 3), (1, 3)], "two processes have --process_id=1; start them with 0 to 2, each once.")])
def test_processes_that_do_not_fit_are_refused(num, hellos, sentence):
  with gathering(num) as (port, problems), contextlib.ExitStack() as links:
    for number, of in hellos:
      links.enter_context(hello(port, number, of))
    until(lambda: problems)
  assert problems == [sentence]


def test_a_process_that_leaves_before_all_have_come_ends_the_others(ended, capfd):
  with gathering(3) as (port, problems), hello(port, 1, 3) as link:
    link.sendall(b'{"left": 1, "sentence": "process 1 has stopped: there are no data.", "code": 2}\n')
    until(lambda: ended)
    with hello(port, 1, 3):  # one of this number is connected, so that process 0 stops waiting
      until(lambda: problems)
  assert ended[0] == 2
  assert "error: process 1 has stopped: there are no data.\n" in capfd.readouterr().err


@pytest.mark.parametrize("answer", [b"\x00\x00\x12\x04\xff\xfe\n", b"HTTP/1.1 400 Bad Request\r\n", b"3\n", b""])
def test_a_process_that_comes_too_late_gets_a_sentence(ended, capfd, answer):
  """Then jax's own service answers at the port, in binary."""
  with socket.create_server(("127.0.0.1", 0)) as server:
    channel = Channel(2, 1, 1.0)

    def connect():
      with pytest.raises(BadInput):
        channel.connect(*server.getsockname())

    thread = threading.Thread(target=connect)
    thread.start()
    link, _ = server.accept()
    link.sendall(answer)
    link.close()
    until(lambda: ended)
    channel._left = True
    thread.join(timeout=5)
  assert ended == [2]
  assert "is not process 0 of a run that starts: process 0 has ended, this process" in capfd.readouterr().err


def test_connections_are_kept_alive_and_made_in_time(monkeypatch):
  def work(channel, number):
    found = []
    for link in channel._links.values():
      with socket.socket(fileno=os.dup(link._connection.fileno())) as connection:
        found.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    channel._left = True
    return found

  assert together(2, work) == [[1], [1]]
  timeouts = []

  def refuse(address, timeout):
    timeouts.append(timeout)
    raise OSError("no route")

  monkeypatch.setattr(connections.socket, "create_connection", refuse)
  with pytest.raises(BadInput, match=r"0.5 s for process 0 at 127.0.0.1:1 \(no route\) in vain"):
    Channel(2, 1, 0.5).connect("127.0.0.1", 1)
  assert max(timeouts) <= 0.5


def test_a_process_ends_with_the_others_even_if_stderr_is_closed(ended, monkeypatch):
  with monkeypatch.context() as patched:
    patched.setattr(sys, "stderr", Closed())
    Channel(2, 1, 1.0)._end(0, "process 0 has stopped.", 2)
  assert ended == [2]
