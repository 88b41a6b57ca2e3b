"""Without a network a download is given up in seconds, and only then."""
import contextlib
import http.server
import io
import threading
import time
import types

import pytest

from alma_jax.data import datasets, tfds_folder
from alma_jax.errors import BadInput


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(tfds_folder, "_PAUSES", (0, 0))
  monkeypatch.setattr(tfds_folder, "_need_tensorflow", lambda what: None)
  for name in ("no_proxy", "NO_PROXY"):
    monkeypatch.setenv(name, "localhost,127.0.0.1")


@contextlib.contextmanager
def serving(answer):
  """The address of a server that answers requests with `answer(handler)`."""
  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      answer(self)

    do_HEAD = do_GET

    def log_message(self, *unused):
      pass

  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
      yield f"http://127.0.0.1:{server.server_port}"
    finally:
      server.shutdown()


def test_which_hosts_can_be_reached(monkeypatch):
  with serving(lambda handler: handler.send_error(503)) as url:  # any answer will do
    assert tfds_folder._why_unreachable(url) == ""
  assert "Connection refused" in tfds_folder._why_unreachable(url)
  monkeypatch.setenv("http_proxy", url)
  assert tfds_folder._why_unreachable("http://data.invalid/").endswith("Connection refused")  # of the proxy
  monkeypatch.delenv("http_proxy")
  monkeypatch.setattr(tfds_folder, "_TIMEOUT", 0.05)
  with serving(lambda handler: time.sleep(0.2)) as url:  # a slow one
    assert tfds_folder._why_unreachable(url) == ""


def test_a_proxy_is_used(monkeypatch):
  asked = []
  with serving(lambda handler: asked.append(handler.path) or handler.send_error(404)) as url:
    monkeypatch.setenv("http_proxy", url)
    assert tfds_folder._why_unreachable("http://data.invalid/") == ""
  assert asked == ["http://data.invalid/"]


@pytest.fixture(scope="module")
def remote():
  """The name of a TFDS data set whose images come from `remote.url`."""
  import tensorflow_datasets as tfds

  class NeedsDownload(tfds.core.GeneratorBasedBuilder):
    VERSION, url = tfds.core.Version("1.0.0"), None

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, supervised_keys=("image", "label"), features=(
          tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(2, 2, 1)),
                                      "label": tfds.features.ClassLabel(num_classes=2)})))

    def _split_generators(self, dl_manager):
      paths = dl_manager.download([f"{self.url}/{name}" for name in ("train", "test")])
      return {name: self._generate_examples(path) for name, path in zip(("train", "test"), paths)}

    def _generate_examples(self, path):
      from PIL import Image
      for i, value in enumerate(path.read_bytes()):
        png = io.BytesIO()  # TFDS would import TensorFlow to encode an array
        Image.new("L", (2, 2), value).save(png, format="png")
        yield i, {"image": png.getvalue(), "label": i % 2}

  return NeedsDownload


def test_without_a_network_one_sentence_names_data_dir(tmp_path, monkeypatch, remote, capfd, caplog):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  with serving(None) as url:
    monkeypatch.setattr(remote, "url_infos", {f"{url}/train": types.SimpleNamespace(size=4)})
  start = time.monotonic()
  with pytest.raises(BadInput, match=r"holds no prepared 'needs_download', and it cannot be downloaded \(no connection "
                     r"to 127.0.0.1:\d+: .*Connection refused\); connect this machine to the network, or name a folder "
                     r"of prepared data sets by dataset.data_dir=DIR.$"):
    datasets.load("tfds:needs_download")
  assert time.monotonic() - start < 30
  assert capfd.readouterr().err .endswith(f" into {tmp_path}, and preparing it there\n")
  assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_before_a_download_one_line_says_what_and_how_large(tmp_path):
  sizes = {"https://b.org/images.gz": 11_000_000, "https://b.org/labels.gz": 594_000, "http://a.com/more": 1}
  builder = types.SimpleNamespace(url_infos={url: types.SimpleNamespace(size=size) for url, size in sizes.items()},
                                  builder_configs={})
  line = tfds_folder._announcement("images", builder, tmp_path)
  assert line == f"downloading images (11.6 MB) from a.com, b.org into {tmp_path}, and preparing it there"
  builder.builder_configs = dict.fromkeys(("small", "large"))  # TFDS knows only the files of both
  assert "images (at most 11.6 MB) from" in tfds_folder._announcement("images", builder, tmp_path)


def test_a_download_from_a_host_that_is_reached(tmp_path, monkeypatch, remote, capfd):
  def answer(handler):
    handler.send_response(200)
    handler.end_headers()
    if handler.command == "GET":
      handler.wfile.write(bytes([10, 20]))
      handler.wfile.flush()
      time.sleep(0.2)  # longer than a first answer may take
      handler.wfile.write(bytes([30, 40]))

  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  monkeypatch.setattr(tfds_folder, "_TIMEOUT", 0.05)
  with serving(answer) as url:
    monkeypatch.setattr(remote, "url", url)
    data = datasets.load("tfds:needs_download")
  assert capfd.readouterr().err.startswith("downloading needs_download into ")
  assert sorted(data.x_train[:, 0, 0, 0]) == [10, 20, 30, 40]
  monkeypatch.setattr(tfds_folder, "download", lambda *unused: pytest.fail("prepared again"))
  assert datasets.load("tfds:needs_download").fingerprint == data.fingerprint
