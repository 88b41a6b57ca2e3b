"""The live page of `alma board`: its data, and what a browser shows while a run goes on."""
import contextlib
import html
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.request

import filelock
import pytest
from reports import diverge, write_run
from test_monitor import rewrite

from alma_jax import web
from alma_jax.monitor import board
from alma_jax.reports import drawing

pytest.importorskip("fastapi")
pytest.importorskip("plotly")

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PIXELS = (390, 1200)
# The page in two frames of these widths. Once both are drawn, a line is added to the first run; when the pages show it,
# the title says what was seen in each frame.
FRAMES = """<!doctype html><body style="margin:0;white-space:nowrap">
<script>
const frames = WIDTHS.map(pixels => {
  const frame = document.createElement("iframe");
  frame.style = `border:0;width:${pixels}px;height:1900px`;
  frame.src = "/";
  document.body.append(frame);
  return frame;
});
const pause = () => new Promise(done => setTimeout(done, 100));
const curve = frame => { const box = frame.contentDocument.getElementById("test-error-mega-batches");
                         return box && box.data ? box.data[0].x.length : 0; };
async function drawn(frame) {
  while (!curve(frame)) await pause();
  return curve(frame);
}
async function look(frame, before) {
  while (curve(frame) === before) await pause();
  const d = frame.contentDocument, e = d.documentElement, num = id => d.getElementById(id).data.map(t => t.x.length);
  const all = what => [...d.querySelectorAll(`section:not([hidden]) ${what}`)];
  const faint = () => d.getElementById("test-error-mega-batches").data.filter(t => t.opacity < 1).length;
  const row = () => d.querySelector("tbody tr"), box = d.getElementById("test-error-mega-batches"), alone = [faint()];
  row().click();
  alone.push(faint(), row().className, box.data.at(-1).meta.split("/").at(-1));
  box.emit("plotly_click", {points: [{data: box.data.at(-1)}]});
  alone.push(faint(), row().className);
  return {
    alone: alone, before: before, after: curve(frame), page: e.scrollWidth, window: e.clientWidth,
    rows: [...d.querySelectorAll("tbody tr")].map(r => r.innerText), heads: all("h2").map(h => h.textContent),
    charts: all(".chart").map(c => c.getBoundingClientRect()).map(c => [c.left, c.width]),
    drawn: all(".chart").map(c => c.querySelectorAll("path").length > 3),
    alarms: num("prequential-error-mega-batches"), trainings: num("trainings-error-mega-batches"),
    elsewhere: [...d.querySelectorAll("[src], [href]")].map(x => x.src || x.href).filter(
      u => !u.startsWith(location.origin) && !u.startsWith("data:"))};
}
async function main() {
  const before = await Promise.all(frames.map(drawn));
  await fetch("/append");
  document.title = JSON.stringify(await Promise.all(frames.map((frame, i) => look(frame, before[i]))));
}
main();
</script>""".replace("WIDTHS", str([*PIXELS]))


@pytest.fixture
def folder(tmp_path):
  """A live run with a drift alarm, a finished one, one that diverged, and a language model."""
  root = tmp_path / "runs"
  first = write_run(root / "a-live", [0.6, 0.5, 0.4, 0.35, 0.3, 0.28], stream__waiting_time=2)
  rewrite(first, lambda entry: entry | dict(
      prequential_error=None if entry["t"] < 3 else 0.4,
      **({"drift_before": 0.125, "drift_after": 0.4} if entry["t"] == 4 else {}))
          if entry["t"] <= 5 else None)
  write_run(root / "b-<img src=x>", [0.5, 0.3, 0.2, 0.1, 0.1, 0.1], num_params=40, grown=30)
  diverge(write_run(root / "c-diverged", [0.5, 0.4]))
  write_run(root / "d-text", [90.0, 80.0], language=True)
  with filelock.FileLock(first / ".lock"):
    yield root


@contextlib.contextmanager
def serving(folder):
  """The address of a board, in a thread of this process. /frames has the page in frames; /append adds to a run."""
  from fastapi import FastAPI
  from fastapi.responses import HTMLResponse
  app = FastAPI()
  app.add_route("/frames", lambda request: HTMLResponse(FRAMES))

  @app.get("/append")
  def append():
    entries = [json.loads(line) for line in (folder / "a-live/metrics.jsonl").read_text().splitlines()]
    with open(folder / "a-live/metrics.jsonl", "a") as file:
      file.write(json.dumps(entries[-1] | dict(t=6, updated=True, error=0.28, num_params=20)) + "\n")

  app.mount("/", board.app(board.Board([str(folder)])))
  with web.listen("127.0.0.1", 0) as sock:
    server = web.server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    while not server.started:
      time.sleep(0.01)
    try:
      yield web.address(sock)
    finally:
      server.should_exit = True
      thread.join()


def test_the_data_of_the_page(folder):
  runs = {run["path"].rsplit("/", 1)[1]: run for run in board.Board([str(folder)]).runs()}
  assert [*runs] == ["a-live", "c-diverged", "d-text", "b-<img src=x>"]  # of finished runs the newest first
  live = runs["a-live"]
  assert (live["state"], live["t"], live["total"], live["stage"], live["stages"]) == ("alive", 5, 6, 2, 3)
  assert live["curve"] == [[1, 2, 3, 4, 5], [0.6, 0.5, 0.4, 0.35, 0.3]]
  assert live["prequential_curve"] == [[3, 4, 5], [0.4, 0.4, 0.4]]
  assert live["drifts"] == [[4, 0.4, "from 0.125 to 0.4"]]
  assert [t for t, _ in live["trainings"]] == [2, 4]
  assert runs["b-<img src=x>"]["params"] == [[1, 2, 3, 4, 5, 6], [10] * 5 + [40]]
  assert live["score"] == ("CER", pytest.approx(0.6 + 0.5 + 0.4 + 0.35 + 0.3))  # so far
  assert (runs["d-text"]["score"], live["compute"]) == (("average perplexity", 85.0), "200")  # two trainings of 100


def test_every_run_has_a_row_and_a_look_of_its_own(tmp_path):
  """Runs of three sweeps whose names end alike, as those of every seed do."""
  for sweep in "abc":
    for seed in range(4):
      write_run(tmp_path / f"sweep-{sweep}" / f"mnist-ens-width32-seed{seed}", [0.5, 0.4], seed=seed)
  runs = board.Board([str(tmp_path)]).runs()
  assert len({run["path"] for run in runs}) == len({run["label"] for run in runs}) == 12
  assert len({(run["colour"], run["dash"]) for run in runs}) == 12
  assert sum(run["colour"] == drawing.style("sm")[0] for run in runs) == 4  # with different dashes
  assert board.labels(["runs/a", os.path.abspath("runs/b/c"), "s3://bucket/c"]) == ["a", "b/c", "s3://bucket/c"]


def test_long_curves_are_thinned_and_keep_their_ends():
  points = [(t, 1.0) for t in range(1, 2502)]
  t, _ = board._curve(points)
  assert (t[0], t[-1], len(t)) == (1, 2501, 835)  # every third one, and the last one
  assert board._curve(points[:3])[0] == [1, 2, 3]
  assert board._curve([(1, float("inf")), (2, 3.0)]) == [[2], [3.0]]


def test_only_what_changed_is_read_again(folder, monkeypatch):
  made, read, reads = board.Board([str(folder)]), board.view.view, []
  monkeypatch.setattr(board.view, "view", lambda path: reads.append(path.name) or read(path))
  first = made.runs()
  assert made.runs() == first
  assert len(reads) == 4
  with open(folder / "a-live/metrics.jsonl", "a") as file:
    file.write('{"t": 6, "updated": false, "error": 0.3}\n')
  assert made.runs()[0]["t"] == 6
  assert reads[4:] == ["a-live"]
  (folder / "d-text/config.json").write_text("{")
  assert "cannot be read as JSON" in next(run["problem"] for run in made.runs() if run["label"] == "d-text")
  with serving(folder) as address:
    answer = urllib.request.urlopen(f"{address}/board.js")
    again = urllib.request.Request(f"{address}/board.js", headers={"If-None-Match": answer.headers["ETag"]})
    with pytest.raises(urllib.error.HTTPError, match="304"):
      urllib.request.urlopen(again)
    for page in ("/", "/board.js", "/plotly/plotly.min.js", "/runs.json"):
      assert urllib.request.urlopen(urllib.request.Request(address + page, method="HEAD")).read() == b""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_browser_shows_a_run_as_it_goes_on(folder, tmp_path):
  with serving(folder) as address:
    dom = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=30000",
         f"--user-data-dir={tmp_path}/browser", "--dump-dom", "--window-size=1600,2000", f"{address}/frames"],
        capture_output=True, text=True, check=True).stdout
  for pixels, shown in zip(PIXELS, json.loads(html.unescape(re.search("<title>(.*?)</title>", dom)[1])), strict=True):
    assert (shown["before"], shown["after"]) == (5, 6)
    assert shown["page"] == shown["window"] == pixels  # nothing is wider than the window
    assert [re.match("a-live|b-<img src=x>|c-diverged|d-text", row)[0] for row in shown["rows"]] == [
        "a-live", "c-diverged", "d-text", "b-<img src=x>"]
    for cell in ("alive", "2.4300", "so far", "0.2800", "0.4000", "300", "6 of 6", "3 of 3"):
      assert cell in shown["rows"][0]
    assert shown["heads"] == ["Test error", "Prequential error, ▼ drift alarm", "Parameters", "Trainings",
                              "Test perplexity", "Parameters", "Trainings"]
    assert shown["drawn"] == [True] * 7
    assert shown["alone"] == [0, 2, "chosen", "a-live", 0, ""]  # of three runs
    assert len({left for left, _ in shown["charts"]}) == (1 if pixels == 390 else 2)  # columns
    assert all(width > (340 if pixels == 390 else 550) for _, width in shown["charts"])
    assert shown["alarms"] == [4, 0, 0, 1]  # curves of three runs, and the alarm of one
    assert shown["trainings"] == [3, 1, 6]
    assert shown["elsewhere"] == []
