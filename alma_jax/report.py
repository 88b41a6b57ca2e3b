"""A table of finished runs: python -m alma_jax.report DIR [DIR ...]

Language models as in the paper's Table 2: perplexity after each mega-batch and
its average; images with CER, mean and final error. The table is Markdown.
"""
import sys

from alma_jax import results
from alma_jax.errors import BadInput


def table(runs):
  """Markdown of finished runs of one task, a row each.

  Args:
    runs: list of results.Run.

  Raises:
    BadInput: there are none, one is unfinished, or their tasks differ.
  """
  if not runs:
    raise BadInput("the command is python -m alma_jax.report DIR [DIR ...].")
  for run in runs:
    if run.summary is None:
      raise BadInput(f"{run.path} is not finished: {len(run.metrics.get('t', ()))} mega-batches so far.")
  if len({run.config.is_language for run in runs}) > 1:
    raise BadInput("runs of language models and of image classification make no table together.")
  rows = [_language(run) if run.config.is_language else _images(run) for run in runs]
  heads = list(dict.fromkeys(head for row in rows for head in row))
  lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *([row.get(head, "") for head in heads] for row in rows)]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _language(run):
  m, s, c = run.metrics, run.summary, run.config
  perplexities = {f"t={t}": "-" if value != value else f"{value:.2f}" for t, value in zip(m["t"], m["perplexity"])}
  return {
      "learner": c.learner.name, "w": str(c.stream.waiting_time), "experts": _experts(c), "parameters": _span(m),
      **perplexities, "average": f"{s['average_perplexity']:.2f}", "multiply-adds": f"{s['cumulative_fwd_macs']:.3g}"}


def _images(run):
  m, s, c = run.metrics, run.summary, run.config
  return {
      "learner": c.learner.name, "w": str(c.stream.waiting_time), "parameters": _span(m), "CER": f"{s['cer']:.3f}",
      "mean error": f"{s['mean_error']:.4f}", "final error": f"{s['final_error']:.4f}",
      "Mem": f"{s['cumulative_params']:.3g}", "Comp": f"{s['cumulative_fwd_macs']:.3g}"}


def _experts(c):
  """As the paper: experts of a mixture @ members, and what they grow to."""
  num, name, num_stages = c.model.num_experts, c.learner.name, -(-c.stream.num_megabatches // c.stream.waiting_time)
  if name == "ens":
    return f"{num}@{c.learner.num_members}"
  if name == "gens":
    return f"{num}@{c.learner.members_per_stage} to {num}@{num_stages * c.learner.members_per_stage}"
  if name == "gmoe":
    return f"{num} to {num + sum(c.learner.add_experts[:num_stages - 1])}"
  return str(num)


def _span(metrics):
  first, last = (f"{metrics['num_params'][i] / 1e6:.3g}M" for i in (0, -1))
  return first if first == last else f"{first} to {last}"


def main():
  """Runs the command line; returns the exit code: 0, or 2 for bad input."""
  if any(arg in ("-h", "--help", "-help") for arg in sys.argv[1:]):
    print(__doc__.strip())
    return 0
  try:
    print(table([results.load_run(path) for path in sys.argv[1:]]))
  except BadInput as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  return 0


if __name__ == "__main__":
  sys.exit(main())
