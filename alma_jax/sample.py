"""Writes text with a language model of a run: python -m alma_jax.sample --workdir DIR --prompt "Once upon"

--stage selects a saved stage (counted from 0; the last one saved by default). An
ensemble uses the mean of its members' probabilities.
"""
import sys
from collections.abc import Sequence

from alma_jax import commands
from alma_jax.runs.results import load_run


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.sample", __doc__)
  parser.add_argument("--workdir", required=True, help="run folder of a language model")
  parser.add_argument("--prompt", default="", help="text to continue; empty: the beginning of a document")
  parser.add_argument("--num_tokens", type=int, default=200, help="how many tokens to write at most")
  parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token")
  parser.add_argument("--top_k", type=int, default=0, help="number of likeliest tokens to draw from; 0: all")
  parser.add_argument("--seed", type=int, default=0, help="another seed gives another text")
  parser.add_argument("--stage", type=int, help="stage of the run, from 0; default: the last one saved")
  options = vars(parser.parse_args(argv))
  commands.quiet()
  print(load_run(options.pop("workdir")).sample(**options))


if __name__ == "__main__":
  sys.exit(main())
