"""alma demo, alma demo live, and the bars that runs end with."""
import math
import re
import xml.etree.ElementTree as ET

import pytest
from runs import alma

import alma_jax
from alma_jax import messages


@pytest.mark.parametrize(("values", "top", "width", "bars"), [
    ([0.0, 1.0], 0.0, 24, "▁█"), ([0.5], 1.0, 24, "▅"), ([0.0, 0.0], 0.0, 24, "▁▁"),
    ([1.0, 1.0, 0.0, 0.0], 0.0, 2, "█▁"), ([1.0, 0.0, 0.5], 0.0, 2, "█▃"),
    ([math.inf, 1.0, math.nan], 0.0, 24, "███")])
def test_bars(values, top, width, bars):
  """1/2 of seven steps is 3.5, which rounds to 4; the mean of 0 and 0.5 is 1/4, and 1.75 steps round to 2."""
  assert messages.spark(values, top, width) == bars


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (950, "950"), (2_230_000_000, "2.23 G"), (18_200, "18.2 k"),
                                              (999_950, "1 M"), (999.96, "1 k")])
def test_numbers(number, text):
  assert messages.brief_number(number) == text


def parsed(page):
  """The page, which must be well-formed but for its void elements, and load nothing."""
  text = page.read_text()
  assert not re.search(r"(src|href)=|@import|url\(", text)
  body = text[text.index("<body>"):text.index("</body>") + len("</body>")]
  return text, ET.fromstring(body)


@pytest.mark.slow
def test_the_demo_compares_three_learners(tmp_path):
  done = alma("demo", f"--out={tmp_path}", "--no_open", cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  text, body = parsed(tmp_path / "index.html")
  scores = {name: alma_jax.load_run(tmp_path / name).summary["cer"] for name in ("sm", "ens", "anytime")}
  assert scores["anytime"] < scores["ens"] < scores["sm"]
  for name, score in scores.items():
    assert f'<b class="{name}">{score:.2f}</b> score' in text
  digits = body.findall(".//div[@class='digit']")
  assert len(digits) == 8
  assert all(len(digit.findall(".//td")) == 9 for digit in digits)
  assert f"page        {tmp_path / 'index.html'}" in done.stdout


@pytest.mark.slow
def test_five_nights_are_played_and_go_on(tmp_path):
  for _ in range(2):  # the second time, all nights are there
    done = alma("demo", "live", f"--out={tmp_path}", "--no_open", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
  _, body = parsed(tmp_path / "index.html")
  run = alma_jax.load_run(tmp_path / "run")
  assert len(run.lines) == 5
  assert (tmp_path / "run/predictor").is_dir()
  rows = body.findall(".//table[@class='nights']/tbody/tr")
  errors = [line["prequential_error"] for line in run.lines]
  assert errors[0] is None
  assert errors[-1] < errors[1]
  assert [row.findall("td")[2].text for row in rows] == ["–", *(f"{error:.1%}" for error in errors[1:])]
