"""Draws the sketches and charts of the documentation: front, timeline, schedules, learners, resumed and devices.

    python benchmarks/drawings.py docs/images
    python benchmarks/drawings.py docs/images --relabel RUNS     relabel.svg, too

They are SVG files, whose colours follow the reader's theme, light or dark. front.svg shows the runs in
docs/results/anytime/runs.csv and frontier.csv: CER against compute on MNIST in 500 mega-batches, means over seeds.
timeline.svg is a sketch with invented errors. learners.svg shows the runs of pictures.py,
docs/images/learners/summary.csv. relabel.svg shows the runs RUNS/anytime and RUNS/uniform, which pictures.sh starts.
"""
import argparse
import itertools
import math
import pathlib
from collections.abc import Iterable

import pandas as pd

from alma_jax.config.stream import Every, Geometric, Power
from alma_jax.reports.figures import weight_cells
from alma_jax.store.record import Record

RUNS = pathlib.Path(__file__).parents[1] / "docs/results/anytime/runs.csv"
FRONTIER = RUNS.with_name("frontier.csv")
LEARNERS = RUNS.parents[2] / "images/learners/summary.csv"
STYLE = """  <style>
    svg { --text: #1d2528; --soft: #5d686d; --line: #d7dde0; --good: #00806b; --other: #3b6fb6; --page: #fff;
          --anytime: #c8102e; }
    @media (prefers-color-scheme: dark) {
      svg { --text: #e6eaec; --soft: #a3afb5; --line: #3b464b; --good: #4fc9b0; --other: #8ab4f0; --page: #1e2129;
            --anytime: #f2637a; }
    }
    .page { fill: var(--page); }
    text { font: 15px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--text); }
    .soft { fill: var(--soft); font-size: 13px; } .end { text-anchor: end; } .mid { text-anchor: middle; }
    .grid { stroke: var(--line); } .axis { stroke: var(--soft); }
    .good { fill: var(--good); } .other { fill: var(--other); } .bold { font-weight: 700; }
    .anytime { fill: var(--anytime); } .curve.anytime { fill: none; stroke: var(--anytime); }
    .curve { fill: none; stroke: var(--good); stroke-width: 3; } .area { fill: var(--good); opacity: .2; }
    .arrow { fill: none; stroke: var(--text); stroke-width: 1.5; } .head { fill: var(--text); }
    .box { fill: var(--line); } .trains { fill: var(--other); opacity: .85; }
    @media (max-width: 480px) { text { font-size: 24px; } .soft { font-size: 22px; } .detail { display: none; } }
  </style>
"""
# Settings of runs that wait: text, its place in pixels right of and below the point, and the end it is anchored at.
WAITING = {"sm": ("one network", (10, 5), ""), "gens": ("growing ensemble", (10, 5), ""),
           "umix": ("ensemble, trained as one", (12, -6), "detail"), "ens": ("ensemble of five", (12, 5), ""),
           "retrain-epochs20": ("one network, retrained on all data", (-12, 5), "end detail")}
# Where the names of learners are in learners.svg, if not right of their points.
BESIDE = {"gens": (-10, 14, "end"), "sm": (-10, -2, "end"), "umix": (-12, 3, "end"), "gmoe": (10, 10, "")}
ANYTIME = ("m9", "m10", "m11")  # total multiply-adds, as powers of ten
LEFT, TOP, WIDTH, HEIGHT = 62, 48, 620, 300  # of the plot
COMPUTE, MOST = (4e9, 3e12), 42.0


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out", type=pathlib.Path, help="folder for the pictures")
  parser.add_argument("--relabel", type=pathlib.Path, metavar="RUNS", help="folder with the runs anytime and uniform")
  given = parser.parse_args()
  drawn = {name: draw() for name, draw in DRAWN.items()} | (
      {"relabel": relabel(given.relabel)} if given.relabel else {})
  for name, picture in drawn.items():
    (given.out / f"{name}.svg").write_text(picture, encoding="utf-8")


def front() -> str:
  """CER against compute: learners that wait as points, `anytime` as a curve."""
  runs = pd.concat([pd.read_csv(RUNS), pd.read_csv(FRONTIER)])
  setting = runs["run"].str.extract(r"seed\d+-(.*)")[0]
  mean = runs.groupby(setting)[["cumulative_fwd_macs", "cer"]].mean()
  place = lambda name: (x(mean["cumulative_fwd_macs"][name]), y(mean["cer"][name]))
  parts = []
  for cer in range(0, 41, 10):
    parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y(cer):.0f}" y2="{y(cer):.0f}"/>'
                 + text(LEFT - 8, y(cer) + 5, str(cer), "soft end"))
  for power, label in ((10, "10 G"), (11, "100 G"), (12, "1,000 G")):
    parts.append(text(x(10.0**power), TOP + HEIGHT + 20, label, "soft mid"))
  title = "CER on MNIST in 500 mega-batches" + detail(": the sum of 500 test errors, lower is better")
  parts.append(text(LEFT, 20, title, "soft"))
  parts.append(text(LEFT + WIDTH, TOP + HEIGHT + 50, "compute, in multiply-adds", "soft end"))
  for name, (label, (right, down), anchor) in WAITING.items():
    at = place(name)
    parts.append(circle(*at, "other") + text(at[0] + right, at[1] + down, label, anchor))
  points = [place(name) for name in ANYTIME if name in mean.index]
  parts.append(f'<path class="curve anytime" d="{path(points)}"/>'
               + "".join(circle(*point, "anytime") for point in points))
  parts.append(text(points[0][0], points[0][1] - 16, "anytime", "anytime bold mid"))
  (x0, y0), (x1, y1) = place("ens"), place("m10")
  bend = f"M{x0 - 8:.0f},{y0 + 8:.0f} Q{x0 - 40:.0f},{y1:.0f} {x1 + 18:.0f},{y1 - 3:.0f}"
  parts.append(f'<path class="arrow" d="{bend}"/>'
               f'<path class="head" d="M{x1 + 9:.0f},{y1 - 2:.0f} l12,-7 l0,12 z"/>')
  return svg("CER against compute on MNIST: anytime has a sixth of the error of an ensemble at a fifteenth of its "
             "compute", LEFT + WIDTH + 118, TOP + HEIGHT + 66,
             [*parts, text(x1 + 8, y(1.5), "1/6 of the error, 1/15 of the compute", "bold")])


def plane() -> str:
  """CER against compute of all learners on the digits."""
  table, (low, high), most = pd.read_csv(LEARNERS), map(math.log, (3e8, 3e9)), 4.0
  right = lambda macs: LEFT + WIDTH * (math.log(macs) - low) / (high - low)
  down = lambda cer: TOP + HEIGHT * (1 - cer / most)
  title = "CER on the digits in 20 mega-batches" + detail(": lower is better; guessing scores 18")
  parts = [text(LEFT, 20, title, "soft"),
           text(LEFT + WIDTH, TOP + HEIGHT + 50, "compute, in multiply-adds", "soft end")]
  for cer in range(5):
    parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{down(cer):.0f}" y2="{down(cer):.0f}"/>'
                 + text(LEFT - 8, down(cer) + 5, str(cer), "soft end"))
  for macs in (0.5, 1, 2):
    parts.append(text(right(macs * 1e9), TOP + HEIGHT + 20, f"{macs} G", "soft mid"))
  for name, cer, macs in table[["learner", "cer", "cumulative_fwd_macs"]].itertuples(index=False, name=None):
    across, below, anchor = BESIDE.get(name, (10, 5, ""))
    is_best = name == "anytime"
    parts.append(circle(right(macs), down(cer), "anytime" if is_best else "other")
                 + text(right(macs) + across, down(cer) + below, name, "anytime bold" if is_best else anchor))
  return svg("CER against compute of all learners on the digits: anytime has less than a third of the CER of ens",
             LEFT + WIDTH + 76, TOP + HEIGHT + 66, parts)


def schedules() -> str:
  """When learners train in a stream of 100 mega-batches."""
  rows = {"every 10": Every(waiting_time=10), "power": Power(num_trainings=10, exponent=2.0),
          "geometric": Geometric(factor=1.3, train_at_end=True)}
  right, parts = lambda t: 140 + 6.2 * t, []
  for row, (name, schedule) in enumerate(rows.items()):
    floor, style = 62 + 56 * row, "anytime" if name == "geometric" else "other"
    parts.append(text(0, floor, name, f"{style} bold") +
                 f'<line class="grid" x1="{right(0):.0f}" x2="{right(100):.0f}" y1="{floor}" y2="{floor}"/>')
    parts += [f'<rect class="{style}" x="{right(t) - 2:.0f}" y="{floor - 34}" width="4" height="34"/>'
              for t in schedule.ends(100)]
  parts += [text(right(t), 198, str(t), "soft mid") for t in (1, 25, 50, 75, 100)]
  parts.append(text(right(100), 224, "mega-batches", "soft end"))
  return svg("When three schedules train in a stream of 100 mega-batches: every 10, power, and geometric, which "
             "anytime uses", 800, 234, parts)


def relabel(runs: pathlib.Path) -> str:
  """Errors of two runs whose labels are redefined half-way, and which old mega-batches one of them replays."""
  record, other = Record(runs / "anytime"), Record(runs / "uniform")
  cells = weight_cells(record.replayed, 1).round(1)
  num, side, high = len(cells), 600 // len(cells), 170
  right, down, row = lambda t: LEFT + side * t, lambda error: TOP + high * (1 - error), lambda old: base - 4 * old
  base = TOP + high + 60 + 4 * num  # of the map
  parts = [text(LEFT, 24, "Wrong answers in %" + detail(": each mega-batch before it is trained on"), "soft"),
           text(LEFT, row(num) - 12, "Old mega-batches that anytime replays", "soft"),
           text(right(num), base + 52, "mega-batches", "soft end")]
  for error in (0, 0.5, 1):
    parts.append(f'<line class="grid" x1="{LEFT}" x2="{right(num)}" y1="{down(error):.0f}" y2="{down(error):.0f}"/>'
                 + text(LEFT - 8, down(error) + 5, f"{100 * error:.0f}", "soft end"))
  for each, style in ((other, "other"), (record, "anytime")):
    stair = [f"{right(t - 1)},{down(error):.1f}H{right(t)}" for t, error in each.values("prequential_error")]
    parts.append(f'<path class="curve" style="stroke:var(--{style})" d="M{"L".join(stair)}"/>')
  old = "".join(f"V{row(t)}H{right(t + 1)}" for t in range(1, num))
  parts.append(f'<path class="box" d="M{right(1)},{row(0)}{old}V{row(0)}Z"/>')
  shades = dict[float, str]()
  for t, column in enumerate(cells.T):
    begin = 0
    for weight, same in itertools.groupby(column[:t]):
      end = begin + len([*same])
      shades[weight] = shades.get(weight, "") + f"M{right(t)},{row(begin)}h{side}V{row(end)}h{-side}z"
      begin = end
  parts += [f'<path class="anytime" shape-rendering="crispEdges" opacity="{weight:.1f}" d="{shades[weight]}"/>'
            for weight in sorted(shades) if weight]
  parts += [text(LEFT - 8, row(t) + 5, str(t), "soft end") + text(right(t) - side / 2, base + 22, str(t), "soft mid")
            for t in range(10, num + 1, 10)]
  change = right(num // 2)
  parts.append(f'<line class="axis" stroke-dasharray="4 4" x1="{change}" x2="{change}" y1="{TOP - 8}" y2="{base}"/>')
  return svg("Errors on MNIST, whose labels are redefined in mega-batch 31: with uniform replay, nearly all answers "
             "stay wrong; anytime leaves out the old mega-batches and is right again two mega-batches later",
             right(num) + 40, base + 66, [
                 *parts, text(change - 10, TOP + 30, "labels are redefined", "bold end"),
                 text(right(50), down(0.52), "uniform replay", "other bold end"),
                 text(right(34), down(0.13), "anytime", "anytime bold"), text(right(18), row(24), "replayed",
                 "anytime bold end"), text(right(0.76 * num), row(0.22 * num), "left out", "bold mid")])


def timeline() -> str:
  """Mega-batches that arrive, trainings after every second one, and the stair of the error, whose area is the CER."""
  errors, num = [.9, .42, .42, .27, .27, .19, .19, .15], 8
  across, top, below = 78, 118, 200
  left, base = 96, top + below
  parts = [text(20, 40, "arrive"), text(20, 88, "trains"), text(20, top + 20, "test"), text(20, top + 44, "error")]
  for t in range(1, num + 1):
    at = left + (t - 1) * across
    parts.append(f'<rect class="box" x="{at + 6}" y="18" width="{across - 12}" height="34" rx="5"/>'
                 + text(at + across / 2, 40, str(t), "mid"))
    if t % 2 == 0:
      parts.append(f'<rect class="trains" x="{at + across - 36}" y="70" width="30" height="24" rx="4"/>')
  # The learner that is deployed after mega-batch t is tested: its error is the height of the bar of t.
  stair = " ".join(f"{'L' if i else 'M'}{left + i * across},{base - error * below:.0f} H{left + (i + 1) * across}"
                   for i, error in enumerate(errors))
  parts.append(f'<path class="area" d="{stair} V{base} H{left} Z"/><path class="curve" d="{stair}"/>')
  parts.append(f'<line class="axis" x1="{left}" x2="{left + num * across}" y1="{base}" y2="{base}"/>')
  parts.append(text(left + 8, base - 12, "the coloured area is the CER", "bold"))
  parts.append(text(left + across + 10, top + 24, "until its first training, the learner guesses", "soft"))
  parts.append(text(left + num * across, base + 24, "mega-batches", "soft end"))
  return svg("Mega-batches arrive one after the other. The learner trains after every second one. Its test error falls "
             "in steps; the area below it is the CER.", left + num * across + 24, base + 40, parts)


def x(macs: float) -> float:
  low, high = map(math.log, COMPUTE)
  return LEFT + WIDTH * (math.log(macs) - low) / (high - low)


def y(cer: float) -> float:
  return TOP + HEIGHT * (1 - cer / MOST)


def text(right: float, down: float, words: str, classes: str = "") -> str:
  return f'<text x="{right:.0f}" y="{down:.0f}" class="{classes}">{words}</text>'


def detail(words: str) -> str:
  """Words that narrow screens leave out."""
  return f'<tspan class="detail">{words}</tspan>'


def circle(right: float, down: float, classes: str) -> str:
  return f'<circle cx="{right:.1f}" cy="{down:.1f}" r="6" class="{classes}"/>'


def path(points: Iterable[tuple[float, float]]) -> str:
  return "M" + " L".join(f"{right:.1f},{down:.1f}" for right, down in points)


def svg(title: str, width: float, height: float, parts: Iterable[str]) -> str:
  size = f"{width:.0f}", f"{height:.0f}"
  return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
          f'viewBox="0 0 {size[0]} {size[1]}" role="img">\n  <title>{title}</title>\n{STYLE}'
          f'  <rect class="page" width="{size[0]}" height="{size[1]}" rx="8"/>\n  '
          + "\n  ".join(parts) + "\n</svg>\n")


def resumed() -> str:
  """A run that is killed twice goes on from its last checkpoint, and ends like one that is not."""
  errors, num, kills = [.8, .5, .42, .3, .26, .2, .18, .15], 8, (2.7, 5.4)
  left, across, parts = 196, 78, []
  for row, (name, cuts) in enumerate((("never stopped", ()), ("killed twice", kills))):
    base = 130 + 150 * row
    parts.append(text(16, base - 44, name))
    begin = 0.0
    for end, start in zip((*cuts, num), (0.0, *(math.floor(cut) for cut in cuts))):
      levels = [(max(start, i), min(end, i + 1), errors[i]) for i in range(num) if i < end and i + 1 > start]
      stair = " ".join(f"{'M' if not i else 'L'}{left + a * across:.0f},{base - error * 100:.0f} "
                       f"H{left + b * across:.0f}" for i, (a, b, error) in enumerate(levels))
      parts.append(f'<path class="curve" d="{stair}"/>')
      begin = end
    for cut in cuts:
      at, saved = left + cut * across, left + math.floor(cut) * across
      parts.append(f'<path class="arrow" d="M{at:.0f},{base + 8} Q{(at + saved) / 2:.0f},{base + 34} '
                   f'{saved + 4:.0f},{base + 10}"/>' + text(at + 6, base - 84, "kill -9", "bold"))
      parts.append(f'<line class="axis" stroke-dasharray="4 4" x1="{at:.0f}" x2="{at:.0f}" y1="{base - 100}" '
                   f'y2="{base + 8}"/>')
    parts.append(f'<line class="axis" x1="{left}" x2="{left + num * across}" y1="{base}" y2="{base}"/>')
    for t in range(1, num + 1):
      parts.append(circle(left + t * across, base, "other"))
    parts.append(text(left + begin * across + 10, base - 10, "the same", "good bold"))
  parts.append(text(16, 334, "dots: checkpoints, from which the same command continues", "soft"))
  return svg("Test error of a run that is never stopped, and of one that is killed twice and ends the same",
             left + num * across + 140, 348, parts)


def devices() -> str:
  """Two machines with two devices each, over which the four members of an ensemble are spread."""
  parts = []
  for machine in range(2):
    left = 20 + 350 * machine
    parts.append(f'<rect class="box" x="{left}" y="20" width="330" height="150" rx="8" opacity=".5"/>'
                 + text(left + 16, 46, f"machine {machine + 1}, process {machine}", "bold"))
    for device in range(2):
      x, number = left + 16 + 152 * device, 2 * machine + device
      parts.append(f'<rect class="box" x="{x}" y="62" width="144" height="92" rx="6"/>'
                   + text(x + 72, 84, f"device {number}", "soft mid") + circle(x + 72, 106, "good")
                   + text(x + 72, 138, f"member {number + 1}", "mid"))
  parts.append('<path class="arrow" d="M185,170 V208"/><path class="head" d="M185,214 l-6,-11 l12,0 z"/>'
               '<rect class="box" x="20" y="216" width="330" height="34" rx="5"/>'
               + text(185, 238, "run folder, which process 0 writes", "mid"))
  return svg("Two machines with two devices each; the four members of an ensemble are spread over the devices", 720,
             268, parts)


DRAWN = {"schedules": schedules,
         "devices": devices, "resumed": resumed, "front": front, "timeline": timeline, "learners": plane}


if __name__ == "__main__":
  main()
