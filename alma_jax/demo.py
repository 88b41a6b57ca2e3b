"""Shows anytime learning on your machine: alma demo [live]

`alma demo` trains three learners on the digits that come with scikit-learn, in half a minute, and opens a page
that compares them. `alma demo live` plays five nights: new digits arrive in a folder, while a run tests itself on them,
learns from them and replaces its predictor. Nothing is downloaded.
"""
import html
import pathlib
import string
import sys
import threading
import webbrowser
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax import commands
from alma_jax import config as configs
from alma_jax.messages import brief_number, duration
from alma_jax.store.record import Record

_LEARNERS = {  # what each of them is, and when it trains
    "sm": ("One network", "waits for two mega-batches, then trains on these"),
    "ens": ("Five networks", "wait for two mega-batches, then train on these; their predictions are averaged"),
    "anytime": ("The anytime learner", "trains at once, on all data so far")}
_QUESTION = "Your data arrives in batches. When do you train?"
_MOMENTS = (1, 5, 20)  # mega-batches after which the page shows predictions
_NUM_DIGITS = 8
_NIGHTS, _PER_NIGHT = 5, 280
_PAUSE = 0.2  # seconds between two looks at the run
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 340, 190, 34, 24  # of a plot, in the units of its SVG


class Shown(NamedTuple):
  """A learner on the page.

  Attributes:
    run: runs.results.Run, finished.
    guesses: {mega-batch: predicted classes of the test digits, int [N]}; None before the first training.
  """
  run: Any
  guesses: dict[int, np.ndarray | None]

  @property
  def name(self) -> str:
    """The learner."""
    name: str = self.run.config.label
    return name


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.demo", __doc__)
  parser.add_argument("what", nargs="?", choices=("live",), help="play five nights instead")
  parser.add_argument("--out", default="", metavar="DIR",
                      help="folder for the runs and the page; default: runs/demo or runs/demo-live")
  parser.add_argument("--no_open", action="store_true", help="do not open the page in a browser")
  args = parser.parse_args(argv)
  out = pathlib.Path(args.out or f"runs/demo{'-live' * bool(args.what)}").expanduser()
  commands.quiet()
  page = (_live if args.what else _compared)(out)
  commands.show(f"\n  page        {page}")
  if not args.no_open:
    webbrowser.open(page.resolve().as_uri())


def _compared(out: pathlib.Path) -> pathlib.Path:
  """Runs the learners, and writes the page that compares them."""
  import alma_jax
  commands.show(f"The digits arrive in {_MOMENTS[-1]} mega-batches. After each, the learners are tested; the sum of "
                f"the errors is the score.\n")
  shown = []
  for name, (title, what) in _LEARNERS.items():
    commands.show(f"  {title} ({name}): {what} ...")
    config = configs.base(name)
    config.checkpoint.keep_every, config.log.tensorboard, config.log.progress = 1, False, False
    run = alma_jax.run(config, out / name)
    commands.show(f"    score {run.summary['cer']:.2f}, {brief_number(run.summary['cumulative_fwd_macs'])} "
                  f"multiply-adds, {duration(run.summary['wall_seconds'])}")
    shown.append(run)
  data = shown[0].config.dataset.load()
  learners = [Shown(run, {t: _guesses(run, data.x_test, t) for t in _MOMENTS}) for run in shown]
  return _write(out, _QUESTION, _comparison(learners, data.x_test, data.y_test))


def _guesses(run: Any, x: np.ndarray, t: int) -> np.ndarray | None:
  """The classes that a run predicted after mega-batch t, int [N]; None before its first training."""
  stage = run.lines[t - 1]["stage"]
  return None if stage is None else run.predict(x, stage=stage).argmax(1)


def _comparison(learners: Sequence[Shown], x: np.ndarray, y: np.ndarray) -> str:
  """The body of the page; `x` are the test digits [N, 8, 8], `y` their classes."""
  best, ens = (next(each for each in learners if each.name == name) for name in ("anytime", "ens"))
  ratio = ens.run.summary["cer"] / best.run.summary["cer"]
  macs = [brief_number(each.run.summary["cumulative_fwd_macs"]) for each in (best, ens)]
  panels = "".join(_panel(each) for each in learners)
  return f"""<h1>{_QUESTION}</h1>
<p>Twenty mega-batches of handwritten digits arrived one after the other. After each of them, every learner below had to
classify the same {len(y)} test digits. The coloured area under a curve is the learner's <b>score</b>, the sum of its
errors (CER). To keep it small, a learner has to be good <em>soon</em> and <em>stay</em> good.</p>
<div class="panels">{panels}</div>
<p><b class="anytime">anytime</b> scores {ratio:.1f} times lower than <b class="ens">ens</b>. Their forward passes
in training cost {macs[0]} and {macs[1]} multiply-adds. A learner that waits can only guess until its first training. A
learner that trains on new data alone forgets some of the old.</p>
<h2>Eight of the digits</h2>
<p>The columns show each learner's answer after {_MOMENTS[0]}, {_MOMENTS[1]} and {_MOMENTS[2]} mega-batches. Wrong
answers are struck through; a dot means "not trained yet". These are hard digits: the learners got them wrong most often
before the end.</p>
<div class="digits">{''.join(_digit(learners, i, x[i], y[i]) for i in _difficult(learners, y))}</div>
<h2>Your turn</h2>
<p>Try a longer wait, or your own images in one folder per class:</p>
<pre>alma run --config=digits:anytime --config.stream.waiting_time=5 --config.stream.schedule=every
alma run --config=folder:anytime --config.dataset.name=folder:DIR
alma demo live</pre>"""


def _panel(shown: Shown) -> str:
  """A learner's curve with its score and costs."""
  summary, (title, what) = shown.run.summary, _LEARNERS[shown.name]
  return (f'<div class="panel"><h3 class="{shown.name}">{title} <code>{shown.name}</code></h3><p>{what}</p>'
          f'<div><b class="{shown.name}">{summary["cer"]:.2f}</b> score</div>'
          f'{_curve(shown.run.metrics["error"], summary["chance"], shown.name)}'
          f'<p>{brief_number(summary["cumulative_fwd_macs"])} multiply-adds · '
          f'{shown.run.lines[-1]["num_params"]:,} parameters · final error {summary["final_error"]:.1%}</p></div>')


def _curve(errors: np.ndarray, chance: float, colour: str, unit: str = "mega-batches") -> str:
  """An SVG of errors [B] as a stair; the area below it is their sum."""
  across, up = (_WIDTH - _LEFT - 8) / len(errors), _HEIGHT - _BOTTOM - 10
  x = lambda t: round(_LEFT + t * across, 1)
  y = lambda error: round(_HEIGHT - _BOTTOM - error * up, 1)
  stair = " ".join(f"{'L' if t else 'M'}{x(t)},{y(error)} H{x(t + 1)}" for t, error in enumerate(errors))
  area = f"{stair} V{y(0)} H{x(0)} Z"
  marks = "".join(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y(value)}" y2="{y(value)}"/>'
                  f'<text x="{_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>'
                  for value in (0, .25, .5, .75, 1))
  return (f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" class="{colour}" '
          f'aria-label="Error after each of {len(errors)} {unit}, from {errors[0]:.2f} to {errors[-1]:.2f}">{marks}'
          f'<line class="guess" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y(chance)}" y2="{y(chance)}"/>'
          f'<text x="{_WIDTH - 8}" y="{y(chance) + 15}" text-anchor="end">guessing</text>'
          f'<path d="{area}" fill="currentColor" opacity=".22"/>'
          f'<path d="{stair}" fill="none" stroke="currentColor" stroke-width="2.5"/>'
          f'<text x="{_LEFT}" y="{_HEIGHT - 6}">1</text><text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" '
          f'text-anchor="end">{len(errors)} {unit}</text></svg>')


def _difficult(learners: Sequence[Shown], y: np.ndarray) -> Sequence[int]:
  """Test digits that the learners got right in the end, and wrong as often as possible before."""
  wrong = np.array([[np.ones(len(y)) if guess is None else guess != y for guess in each.guesses.values()]
                    for each in learners])  # [L, T, N]
  never = wrong[:, -1].sum(0)
  order = np.lexsort((-wrong.sum((0, 1)), never))
  return [int(i) for i in order[:_NUM_DIGITS]]


def _live(out: pathlib.Path) -> pathlib.Path:
  """Plays the nights, and writes the page about them."""
  import alma_jax
  commands.show(f"Each night, {_PER_NIGHT} new digits arrive in {out / 'data' / 'stream'}. A run tests its predictor\n"
                "on them, trains on them, and replaces the predictor.\n")
  tree = configs.load_file("live", "anytime")
  tree["dataset"] |= dict(name=f"live:{out / 'data'}", settle_seconds=0.0)
  tree["train"]["budget"] = 1e8  # enough for digits: less than a second a night
  tree["log"] |= dict(drift=0.0, tensorboard=False, progress=False)
  tree["checkpoint"]["keep_every"] = 1
  data = configs.parse(configs.base()).dataset.load()
  over = threading.Event()
  feeder = threading.Thread(target=_feed, args=(out, data, over), daemon=True)
  (out / "data" / "stream").mkdir(parents=True, exist_ok=True)
  feeder.start()
  try:
    run = alma_jax.run(configs.parse(tree), out / "run",
                       should_stop=lambda: not feeder.is_alive() and not (out / "data" / "end").exists())
  finally:
    over.set()
    feeder.join()
  shown = Shown(run, {t: _guesses(run, data.x_test, t) for t in (1, 3, _NIGHTS)})
  return _write(out, "Data arrives every night", _nights(shown, out, data.x_test, data.y_test))


def _feed(out: pathlib.Path, data: Any, over: threading.Event) -> None:
  """Adds a night's digits when the run has learned the last night's, and ends the stream after the last night."""
  record = Record(out / "run")
  for night in range(1, _NIGHTS + 1):
    part, path = slice((night - 1) * _PER_NIGHT, night * _PER_NIGHT), out / "data" / "stream" / f"night-{night}.npz"
    if not path.exists():
      np.savez(out / "data" / "arriving.npz", x=data.x_train[part], y=data.y_train[part])
      (out / "data" / "arriving.npz").replace(path)  # at once: the run never sees half of a file
    while record.num_lines < night and not over.wait(_PAUSE):
      pass
    if over.is_set():
      return
    line = Record(out / "run").lines[night - 1]
    error = line["prequential_error"]
    tested = "nothing to test yet" if error is None else f"last night's predictor was wrong on {error:.0%} of them"
    commands.show(f"  night {night}: {_PER_NIGHT} digits arrived, {tested}; trained for {duration(line['seconds'])}")
  (out / "data" / "end").touch()


def _nights(shown: Shown, out: pathlib.Path, x: np.ndarray, y: np.ndarray) -> str:
  """The body of the page about the nights."""
  lines, chance = shown.run.lines, shown.run.summary["chance"]
  errors = np.array([chance if line["prequential_error"] is None else line["prequential_error"] for line in lines])
  rows = "".join(f"<tr><td>{line['t']}</td><td>{_PER_NIGHT}</td><td>{'–' if line['t'] == 1 else f'{error:.1%}'}</td>"
                 f"<td>{duration(line['seconds'])}</td></tr>" for line, error in zip(lines, errors))
  return f"""<h1>Data arrives every night</h1>
<p>For {_NIGHTS} nights, {_PER_NIGHT} handwritten digits arrived in a folder. Each night, the run first used its
predictor on the new digits, so you know how good it was <em>before</em> it had seen them. Then it trained on all digits
so far and replaced the predictor. You could have stopped or killed it at any time: it goes on where it stopped.</p>
<div class="panels"><div class="panel"><h3 class="{shown.name}">Error on the digits of the night, before learning
them</h3>{_curve(errors, chance, shown.name, "nights")}</div>
<div class="panel"><table class="nights"><thead><tr><th>night</th><th>digits</th><th>error</th><th>training</th></tr>
</thead><tbody>{rows}</tbody></table></div></div>
<h2>Eight digits that never arrived</h2>
<p>What the predictors of nights 1, 3 and {_NIGHTS} say about digits that were in no night's data: eight that
the earlier predictors found hard.</p>
<div class="digits">{''.join(_digit([shown], i, x[i], y[i]) for i in _difficult([shown], y))}</div>
<h2>Your turn</h2>
<p>Put your own files into a folder (one <code>.npz</code> file or one folder of images by class per night), and leave a
run beside it. Ask the newest predictor at any time:</p>
<pre>alma run --config=live:anytime --config.dataset.name=live:DIR --workdir runs/mine
alma predict --workdir runs/mine IMAGES
alma serve --workdir runs/mine
alma status runs/mine</pre>"""


def _digit(learners: Sequence[Shown], i: int, image: np.ndarray, label: int) -> str:
  """A test digit, with what each learner said after the moments."""
  def cell(guess: np.ndarray | None) -> str:
    if guess is None:
      return '<td class="none" title="not trained yet">·</td>'
    return f'<td class="{"yes" if guess[i] == label else "no"}">{guess[i]}</td>'

  rows = "".join(f'<tr><th class="{each.name}">{each.name}</th>{"".join(map(cell, each.guesses.values()))}</tr>'
                 for each in learners)
  heads = "".join(f"<th>{t}</th>" for t in learners[0].guesses)
  return (f'<div class="digit">{_image(image, f"a {label}")}<table><thead><tr><th></th>{heads}</tr></thead>'
          f"<tbody>{rows}</tbody></table></div>")


def _image(image: np.ndarray, label: str) -> str:
  """An SVG of grey pixels [H, W], 0 to 16."""
  pixels = "".join(f'<rect x="{c}" y="{r}" width="1.02" height="1.02" fill="#fff" opacity="{value / 16:.2f}"/>'
                   for (r, c), value in np.ndenumerate(np.squeeze(image)) if value)
  return f'<svg viewBox="0 0 {image.shape[1]} {image.shape[0]}" role="img" aria-label="{label}">{pixels}</svg>'


def _write(out: pathlib.Path, title: str, body: str) -> pathlib.Path:
  """Writes DIR/index.html."""
  template = string.Template(pathlib.Path(__file__).with_name("demo.html").read_text(encoding="utf-8"))
  path = out / "index.html"
  path.write_text(template.substitute(title=html.escape(title), body=body), encoding="utf-8")
  return path


if __name__ == "__main__":
  sys.exit(main())
