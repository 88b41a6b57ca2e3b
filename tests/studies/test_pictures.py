"""The pictures of the pages show what their commands make today."""
import html
import json
import os
import re
import subprocess
import sys

import pandas as pd
import pytest
from runs import ROOT

pytestmark = pytest.mark.slow

# What draws the pictures of a folder, or of a page: commands, and the page with the command of the README's picture.
TUTORIAL, DRAWINGS = "images/tutorial/", (
    "front.svg", "timeline.svg", "schedules.svg", "learners.svg", "resumed.svg", "devices.svg")
DRAW = r"python benchmarks/(pictures|study_figures|drift_study|nights|task_claims)\.py .*(docs|--picture)|" \
       r"alma (board|report|demo|serve)|" \
       r"\(docs/results/anytime/README\.md\)"
PAGES = [path for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
         if re.search(r"!\[.*?\]\(", path.read_text(), re.DOTALL)]
LEARNERS = sorted((ROOT / "docs/images/learners").glob("*.svg"))
FIGURES = sorted((ROOT / "docs/results").glob("*/*.svg"))


def shown_by(path):
  """{learner: {column: values}} of a picture that benchmarks/pictures.py has drawn."""
  return json.loads(html.unescape(re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(), re.DOTALL)[1]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_with_a_picture_has_its_command(monkeypatch, page):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import tutorial
  text = page.read_text()
  for picture in re.findall(r"!\[[^]]*\]\((.*?)\)", text):
    if TUTORIAL in picture:
      assert picture.rpartition("/")[2] in tutorial.PICTURES
    elif not picture.endswith((*DRAWINGS, "architecture.svg")):
      assert re.search(DRAW, text), picture


@pytest.mark.parametrize("path", LEARNERS, ids=lambda path: path.stem)
def test_pictures_of_the_same_runs_agree(path):
  shown, first = shown_by(path), shown_by(ROOT / "docs/images/digits-stream.svg")
  assert set(shown) == {"sm", path.stem}
  for name in set(shown) & set(first):
    assert shown[name]["error"] == first[name]["error"]


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_figures_of_studies_are_small_and_follow_the_theme(path):
  text = re.sub(r"--\w+: #\w+;", "", path.read_text())  # without the colours of the two themes
  assert "prefers-color-scheme: dark" in text
  assert not re.search(r"#[0-9a-f]{6}", text) or path.stem.startswith("matrix")  # whose cells have one colour
  assert len(path.read_bytes()) < 150_000


@pytest.mark.parametrize("name", ["front", "timeline", "schedules", "learners", "resumed", "devices"])
def test_drawings_are_those_of_their_script(monkeypatch, name):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import drawings
  assert (ROOT / f"docs/images/{name}.svg").read_text() == drawings.DRAWN[name]()


def test_the_front_picture_says_what_the_runs_say():
  """A sixth of the error at a fifteenth of the compute, from the tables of the runs."""
  runs = pd.concat(pd.read_csv(ROOT / f"docs/results/anytime/{name}.csv") for name in ("runs", "frontier"))
  mean = runs.groupby(runs["run"].str.extract(r"seed\d+-(.*)")[0])[["cer", "cumulative_fwd_macs"]].mean()
  error, compute = mean.loc["m10"] / mean.loc["ens"]
  assert 1 / error == pytest.approx(6, abs=0.5)
  assert 1 / compute == pytest.approx(15, abs=0.5)


def test_the_first_picture_shows_the_runs_of_today(tmp_path):
  """Its command, of one learner; a processor that rounds differently may move single images of the test set of 360."""
  path = ROOT / "docs/images/digits-stream.svg"
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # optimised, as runs are
  subprocess.run([sys.executable, ROOT / "benchmarks/learners.py", "--learners", "sm", f"--workdir={tmp_path}",
                  f"--config={ROOT}/configs/digits.py"], check=True, cwd=ROOT, env=environment)
  lines = (tmp_path / "sm/metrics.jsonl").read_text().splitlines()
  assert [json.loads(line)["error"] for line in lines] == pytest.approx(shown_by(path)["sm"]["error"], abs=2.5 / 360)
