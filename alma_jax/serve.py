"""Serves the predictor of a run over HTTP: alma serve --workdir RUN [--task T] [--port 8000]

  POST /predict   application/json {"inputs": [EXAMPLE, ...]}, examples as nested lists of raw numbers;
                  application/octet-stream, the bytes of examples; image/..., one image file;
                  for a language model application/json {"texts": ["...", ...]}
                  -> {"classes": [...], "probabilities": [[...], ...], "predictor": VERSION or null}
  GET /           a page to draw a digit, drop an image or type a text, and see the answer
  GET /healthz    which predictor answers, and how good it was
  GET /metrics    for Prometheus

If RUN has a folder `predictor` (log.predictor=true), each new predictor of the run is loaded while the old one answers.
Otherwise the last checkpoint is served. Of a stream of tasks a service answers for one task, which --task names. The
service listens to this machine alone; --host=0.0.0.0 lets everyone in, so put a proxy with authentication before it.
Needs `pip install 'alma_jax[serve]'`.
"""
import sys
from collections.abc import Sequence

from alma_jax import commands, messages, predict, web
from alma_jax.errors import BadInput

_MAX_BYTES = 2**24


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.serve", __doc__)
  predict.add_arguments(parser)
  web.add_arguments(parser, port=8000)
  parser.add_argument("--max_batch", type=int, default=256, help="examples of a request, at most; default: 256")
  parser.add_argument("--max_bytes", type=int, default=_MAX_BYTES, help="bytes of a request, at most; default: 16 MiB")
  parser.add_argument("--timeout", type=int, default=web.TIMEOUT, help="seconds that a client may take to send a "
                      f"request, or to read an answer; default: {web.TIMEOUT}")
  parser.add_argument("--max_connections", type=int, default=web.CONNECTIONS, help="connections that stay open; "
                      f"beyond this, those that wait longest for their clients are closed; default: {web.CONNECTIONS}")
  parser.add_argument("--poll", type=float, default=1.0, help="seconds between two looks for a new predictor")
  args = parser.parse_args(argv)
  for name in ("max_batch", "max_bytes", "timeout", "max_connections", "poll"):
    if not getattr(args, name) > 0:
      raise BadInput(f"--{name}={getattr(args, name)} should be above 0.")
  with web.listen(args.host, args.port) as sock:
    stored, place, _ = predict.stored_of(args)
    from alma_jax.predictors import service
    made = service.Service(predict.load(stored), place, args.max_batch, args.max_bytes, args.timeout, args.poll)
    messages.say(f"serving {args.workdir} on {web.address(sock)}")
    web.server(service.app(made), args.timeout, args.max_connections).run(sockets=[sock])


if __name__ == "__main__":
  sys.exit(main())
