"""Run folders written by hand, and what tests read from reports of them."""
import json

from alma_jax import config as configs
from alma_jax.reports import collect, drawing, figures, page
from alma_jax.store import metrics, run_files


def write_run(path, values, learner="sm", num_params=10, macs=100, grown=0, **changes):
  """A finished run of one stage per mega-batch; `values` are its errors or, of a language model, perplexities.

  It holds num_params in the end, and `grown` less before the last mega-batch.
  """
  language = changes.pop("language", False)
  config = (configs.language if language else configs.base)(learner)
  fields = {"stream.num_megabatches": len(values)} | changes
  if config.stream.schedule == "every":
    config.stream.waiting_time = 1
  config.update_from_flattened_dict({key.replace("__", "."): value for key, value in fields.items()})
  path.mkdir(parents=True)
  tree = dict(configs.to_dict(configs.parse(config)), data_fingerprint="0" * 64, format=run_files.FORMAT,
              made_with={"jax": path.name}, alma_jax_version="0.2.0")
  (path / "config.json").write_text(json.dumps(tree))
  wait = tree["stream"].get("waiting_time", 1)
  metric = "perplexity" if language else "error"
  lines = [metrics.line(metric, t, (t - 1) // wait, t % wait == 0, value, value, 0.5,
                        num_params - grown * (t < len(values)), macs if t % wait == 0 else 0)
           for t, value in enumerate(values, 1)]
  (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  summary = metrics.summarize(lines, num_params - grown) | dict(
      wall_seconds=2.0, compile_seconds=1.0, device="cpu", config_sha256=configs.digest(tree))
  (path / "summary.json").write_text(json.dumps(summary))
  return path


def diverge(path, done=1):
  """Changes a run into one that diverged after `done` mega-batches."""
  (path / "summary.json").unlink()
  lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
  (path / "metrics.jsonl").write_text("".join(lines[:done]))
  line = f"train_loss is no longer finite in stage {done}, epoch 2; lower train.learning_rate=1.0. All before is saved."
  (path / "diverged.json").write_text(json.dumps({"stage": done, "epoch": 2, "line": line}))


def change(file, **changes):
  """Changes keys of a JSON file; None: removes one."""
  tree = json.loads(file.read_text()) | changes
  file.write_text(json.dumps({key: value for key, value in tree.items() if value is not None}))


def change_lines(path, **columns):
  """Sets keys in the lines of metrics.jsonl: {key: {t: value}}."""
  lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
  for key, values in columns.items():
    for t, value in values.items():
      lines[t - 1][key] = value
  (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def set_learner(path, **options):
  """Makes a run one of another learner, perhaps of the user's own."""
  change(path / "config.json", learner=options)
  change(path / "summary.json", config_sha256=configs.digest(json.loads((path / "config.json").read_text())))


def write_report(paths, out):
  return page.write(*collect.collect(paths), out)


def study_of(*paths):
  (study,), problems = collect.collect(paths)
  assert problems == []
  return study


def legend(figure):
  """The names in the legend of a figure."""
  return [text.get_text() for text in figure.legends[0].get_texts()]


def drawn(study, name, waits=()):
  """One of the figures of a study."""
  return drawing.draw(figures.plots(study, waits)[name])
