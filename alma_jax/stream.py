"""Writes mega-batches as a live stream: alma stream DIR --config=drift:anytime,relabel

DIR/stream/0001.npz, 0002.npz, ... hold x and y of the mega-batches that `alma run`
with this config trains on, DIR/test.npz the test set unless it changes, and the
file DIR/end ends the stream. Run on it with --config.dataset.name=live:DIR.
"""
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from alma_jax import commands
from alma_jax import config as configs
from alma_jax.data.feed import END
from alma_jax.errors import BadInput


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.stream", __doc__)
  parser.add_argument("folder", metavar="DIR", help="a new or empty folder")
  parser.add_argument("--config", required=True, metavar="FILE:ARGUMENT",
                      help="config file, as for `alma run`; --config.a.b=VALUE changes a field")
  options, overrides = parser.parse_with_fields(argv)
  config = configs.parse(configs.overridden(configs.load_file(*options.config.partition(":")[::2]), overrides))
  folder = pathlib.Path(options.folder).expanduser()
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise BadInput(f"{folder} holds files already; name a new or empty folder.")
  from alma_jax import protocols

  commands.quiet()
  names = []
  for name, arrays in protocols.of(config).entries(config):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    names.append(name)
  (folder / END).touch()
  num = sum(name.startswith("stream/") for name in names)
  commands.show(f"{num} mega-batches{' and a test set' * (len(names) > num)} in {folder}; run on them with "
                f"--config=live:LEARNER --config.dataset.name=live:{folder}")


if __name__ == "__main__":
  sys.exit(main())
