"""How runs are scored, and how reports show their scores."""
from typing import NamedTuple

from alma_jax.config.schema import RunConfig

COMP, MEM = "cumulative_fwd_macs", "cumulative_params"  # results of summary.json; COMP is also a column of the stream
FLOPS = "cumulative_train_flops"
Columns = dict[str, tuple[str, str]]  # {column of `runs`: (head, format)}


class Scoring(NamedTuple):
  """A score, and what is shown with it.

  Attributes:
    metric: the column of the stream that measures each unit.
    score: the column of `runs` that scores a whole run.
    score_name: in figures.
    overall: the column of `runs` by which kinds that are trained at different t are compared.
    overall_name: in figures.
    brief: the name of `overall` in findings.
    columns: those of the overview, besides costs.
    ablated: those of the tables of ablations.
    forms: formats of a score, and of the metric of one unit.
    averages: whether the score is a mean over the trainings. A learner that waits longer averages over fewer and later
      ones, so kinds that are trained at different t cannot be compared by it.
    counts_experts: whether the size of a run is also given in experts.
    source: the figures of the paper that show the score against a cost.
  """
  metric: str
  score: str
  score_name: str
  overall: str
  overall_name: str
  brief: str
  columns: Columns
  ablated: Columns
  forms: tuple[str, str]
  averages: bool = False
  counts_experts: bool = False
  source: str = "Figures 2 and 7"


ERROR = Scoring(
    "error", "cer", "CER", "cer", "CER", "CER",
    columns={"cer": ("CER", ".3f"), "mean_error": ("mean error", ".4f"), "final_error": ("final error", ".4f")},
    ablated={"cer": ("CER", ".3f"), COMP: ("Comp", ".3g"), "final_error": ("final error", ".4f")},
    forms=(".3f", ".4f"))
PERPLEXITY = Scoring(
    "perplexity", "average_perplexity", "average perplexity", "final_perplexity", "final perplexity", "perplexity",
    columns={"average_perplexity": ("average", ".2f")},
    ablated={"average_perplexity": ("average", ".2f"), COMP: ("Comp", ".3g"), "final_perplexity": ("final", ".2f")},
    forms=(".2f", ".2f"), averages=True, counts_experts=True, source="Figure 5")
ACCURACY = Scoring(
    "error", "cumulative_error", "cumulative error", "cumulative_error", "cumulative error", "cumulative error",
    columns={"cumulative_error": ("E", ".3f")},
    ablated={"cumulative_error": ("E", ".3f"), FLOPS: ("C", ".3g"), "memory": ("M", ".3g")},
    forms=(".3f", ".4f"))
_BY_SCORE = {each.score: each for each in (ERROR, PERPLEXITY, ACCURACY)}


def of(kind: type[RunConfig]) -> Scoring:
  """The Scoring of runs with this class of config, by the first of their results."""
  return _BY_SCORE[kind.results[0]]
