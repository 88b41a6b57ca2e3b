"""Protocols: the kinds of streams that reports know, and what they read and show of each."""
from collections.abc import Mapping
from typing import Any, NamedTuple

from alma_jax.config import registry
from alma_jax.errors import BadInput

COMP, MEM = "cumulative_fwd_macs", "cumulative_params"  # results of summary.json; COMP is also a column of the stream
FLOPS = "cumulative_train_flops"


class Protocol(NamedTuple):
  """A kind of stream.

  Attributes:
    unit: what a stream consists of.
    least: the least value of stream.num_megabatches; 0 there stands for the whole stream.
    metric: the column of the stream that measures each unit.
    results: entries of summary.json that every run has, besides the costs.
    score: the column of `runs` that scores a whole run.
    score_name: in figures.
    overall: the column of `runs` by which kinds that are trained at different t are compared. The average perplexity
      of a learner that waits longer is over fewer and later updates.
    overall_name: in figures.
    ablated: {column of `runs`: (head, format)} of the tables of ablations.
  """
  unit: str
  least: int
  metric: str
  results: tuple[str, ...]
  score: str
  score_name: str
  overall: str
  overall_name: str
  ablated: dict[str, tuple[str, str]]


IMAGES = Protocol(
    "mega-batches", 1, "error", ("cer", "mean_error", "final_error"),
    score="cer", score_name="CER", overall="cer", overall_name="CER",
    ablated={"cer": ("CER", ".3f"), COMP: ("Comp", ".3g"), "final_error": ("final error", ".4f")})
LANGUAGE = Protocol(
    "mega-batches", 1, "perplexity",
    ("average_perplexity", "final_perplexity"), score="average_perplexity", score_name="average perplexity",
    overall="final_perplexity", overall_name="final perplexity",
    ablated={"average_perplexity": ("average", ".2f"), COMP: ("Comp", ".3g"), "final_perplexity": ("final", ".2f")})
TASKS = Protocol(
    "tasks", 0, "error",
    ("average_accuracy", "forgetting", "cumulative_error", "last_accuracy", "num_modules", "memory", FLOPS),
    score="cumulative_error", score_name="cumulative error", overall="cumulative_error",
    overall_name="cumulative error",
    ablated={"cumulative_error": ("E", ".3f"), FLOPS: ("C", ".3g"), "memory": ("M", ".3g")})
_ALL = {registry.IMAGES: IMAGES, registry.TEXT: LANGUAGE, registry.TASKS: TASKS}


def of(tree: Mapping[str, Any]) -> Protocol:
  """The Protocol of a stored config.

  Raises:
    BadInput: the config is about no problem that is known.
  """
  problem = tree.get("problem")
  if problem not in _ALL:
    raise BadInput(f"its config.json has problem={problem!r}, which is not one of {', '.join(_ALL)}.")
  return _ALL[problem]
