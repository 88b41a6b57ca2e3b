"""Protocols: the kinds of streams that reports know, and what they read and show of each."""
from collections.abc import Mapping
from typing import Any, NamedTuple

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.config.learner_options import Options
from alma_jax.config.schema import RunConfig

COMP, MEM = "cumulative_fwd_macs", "cumulative_params"  # results of summary.json; COMP is also a column of the stream
FLOPS = "cumulative_train_flops"


class Protocol(NamedTuple):
  """A kind of stream.

  Attributes:
    config: class of its configs.
    dataset: fields of the section `dataset` by which such a config is recognised.
    learners: {name: class of its options} of the learners that are part of this package.
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
  config: type[RunConfig]
  dataset: Mapping[str, Any]
  learners: Mapping[str, type[Options]]
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
    schema.ImageConfig, {}, configs.LEARNERS, "mega-batches", 1, "error", ("cer", "mean_error", "final_error"),
    score="cer", score_name="CER", overall="cer", overall_name="CER",
    ablated={"cer": ("CER", ".3f"), COMP: ("Comp", ".3g"), "final_error": ("final error", ".4f")})
LANGUAGE = Protocol(
    schema.LanguageConfig, {"sequence_length": 2}, configs.TEXT_LEARNERS, "mega-batches", 1, "perplexity",
    ("average_perplexity", "final_perplexity"), score="average_perplexity", score_name="average perplexity",
    overall="final_perplexity", overall_name="final perplexity",
    ablated={"average_perplexity": ("average", ".2f"), COMP: ("Comp", ".3g"), "final_perplexity": ("final", ".2f")})
TASKS = Protocol(
    schema.TaskConfig, {"test_per_class": 0}, configs.TASK_LEARNERS, "tasks", 0, "error",
    ("average_accuracy", "forgetting", "cumulative_error", "last_accuracy", "num_modules", "memory", FLOPS),
    score="cumulative_error", score_name="cumulative error", overall="cumulative_error",
    overall_name="cumulative error",
    ablated={"cumulative_error": ("E", ".3f"), FLOPS: ("C", ".3g"), "memory": ("M", ".3g")})
_ALL = {protocol.config: protocol for protocol in (IMAGES, LANGUAGE, TASKS)}


def of(tree: dict[str, Any]) -> Protocol:
  """The Protocol of a stored config."""
  return _ALL[schema.config_of(tree)]
