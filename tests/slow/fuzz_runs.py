"""Fuzz targets of the readers of configs, run folders, sweeps, predictors, and of the HTTP service."""
import asyncio
import contextlib
import functools
import io
import json
import pathlib
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import damage
import numpy as np
from fuzz_data import Target, check_sentence, each
from hypothesis import strategies as st
from PIL import Image

import alma_jax
from alma_jax import compare, export, report, status, sweeps
from alma_jax import config as configs
from alma_jax.data import examples
from alma_jax.errors import BadInput
from alma_jax.monitor import board
from alma_jax.predictors import answers, inputs, service
from alma_jax.predictors import folder as predictors
from alma_jax.predictors.predictor import load
from alma_jax.runs import results
from alma_jax.store import checkpoint, run_files, run_folder
from alma_jax.store.record import Record
from alma_jax.sweeps import jobs, states

_SMALL = {"stream.num_megabatches": 4, "stream.waiting_time": 2, "model.width": 4, "train.epochs": 1,
          "train.batch_size": 64, "devices": 1, "log.progress": False, "log.tensorboard": False}
_TASKS = {"model.width": 4, "train.epochs": 1, "stream.num_megabatches": 2, "train.batch_size": 64, "devices": 1,
          "log.progress": False, "log.tensorboard": False}
_RUN_FILES = ("config.json", "metrics.jsonl", "train.jsonl", "summary.json")


def config(folder: pathlib.Path) -> Target:
  """Configs of all three kinds as trees, and fields of the command line."""
  trees = [json.loads(json.dumps(made.to_dict())) for made in (
      configs.base("gens"), configs.base("hmoe"), configs.base("anytime"), configs.tasks("mntdp"),
      configs.language("gmoe"), configs.language("btm"))]
  fields = sorted({field for tree in trees for field in configs.flatten(tree)})
  flags = st.dictionaries(st.one_of(st.sampled_from(fields), damage.words), st.one_of(
      st.none(), damage.words, damage.scalars.map(_text), damage.values.map(_text)), max_size=3)

  def use(example: tuple[Any, dict[str, str | None]]) -> None:
    tree, given = example
    each(lambda: _parsed(tree), lambda: configs.parse(configs.overridden(json.loads(json.dumps(tree)), given)))

  def _parsed(tree: Any) -> None:
    parsed = configs.parse(tree)
    again = json.loads(json.dumps(configs.to_dict(parsed)))
    assert configs.digest(parsed) == configs.digest(again)
    assert configs.parse(again) == parsed
    configs.default_workdir(parsed)

  return Target(st.tuples(st.sampled_from(trees).flatmap(damage.edited), flags), use)


def runs(folder: pathlib.Path, with_pages: bool = False) -> Target:
  """Run folders, through the commands report, status and compare, and load_run.

  Args:
    folder: of all files.
    with_pages: whether their report has pages and figures (--out), and nothing else reads them.
  """
  made = _made(folder)
  whole = {kind: {name: (path / name).read_bytes() for name in (*_RUN_FILES, "graph.json") if (path / name).exists()}
           for kind, path in made.items()}
  place = folder / "damaged"

  def use(example: tuple[str, str, bytes | None]) -> None:
    kind, name, data = example
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for each_name, content in whole[kind].items():
      (place / each_name).write_bytes(content)
    if data is None:
      (place / name).unlink(missing_ok=True)
    else:
      (place / name).write_bytes(data)
    if with_pages:
      _command(report, str(place), str(made[kind]), f"--out={folder / 'report'}")
      return
    each(lambda: _command(report, str(place), str(made[kind])), lambda: _command(status, str(place)),
         lambda: _command(compare, str(place), str(made[kind])), lambda: board.Board([str(place)]).runs(),
         lambda: results.Run(place))

  return Target(_of_files(whole), use)


def resume(folder: pathlib.Path) -> Target:
  """What a run reads when it goes on: its folder, its files of lines, its checkpoints and frozen members."""
  path = folder / "stopped"
  config, left = configs.base("gens"), [3]
  config.update_from_flattened_dict({**_SMALL, "stream.waiting_time": 1, "checkpoint.seconds": 0.0})

  def stop() -> bool:
    left[0] -= 1
    return left[0] < 0

  with contextlib.suppress(alma_jax.Stopped):
    alma_jax.run(config, path, should_stop=stop)
  parsed = configs.parse(config)
  stored = json.loads((path / "config.json").read_text())
  digests = {key: stored[key] for key in ("data_fingerprint", "root_sha256") if key in stored}
  backup = folder / "backup"
  shutil.copytree(path, backup)
  names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.name != ".lock")

  def use(example: tuple[str, bytes]) -> None:
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    name, data = example
    (path / name).write_bytes(data)
    with run_folder.RunFolder(path) as opened:
      opened.claim(run_folder.Identity(parsed, digests, stored["made_with"], "the data"), overwrite=False)
      assert Record(path).summary is None
      found = checkpoint.Checkpoints(path, 2)
      try:
        newest = found.newest()
      finally:
        found.finish()
      assert newest is not None
      lines = newest.meta["lines"]
      opened.cut(run_files.METRICS, lines)
      opened.check_and_cut(run_files.TRAIN, newest.meta["num_train_lines"], newest.meta["train_total"])

  def of_file(name: str) -> st.SearchStrategy[bytes]:
    data = (backup / name).read_bytes()
    if name.endswith(".jsonl"):
      return damage.edited_lines([json.loads(line) for line in data.splitlines()])
    with contextlib.suppress(ValueError):
      return damage.edited_json(json.loads(data))
    return damage.damaged(data)

  summary = st.tuples(st.just("summary.json"), damage.edited_json({"cer": 1.0, "num_stages": 2}))
  return Target(st.one_of(st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), of_file(name))),
                          summary), use)


def sweep(folder: pathlib.Path) -> Target:
  """Sweep files, their points, and the states of their run folders."""
  base = folder / "base.py"
  base.write_text("from alma_jax import config as configs\n\n\ndef get_config(learner='sm'):\n"
                  "  return configs.base(learner)\n")
  source = f"""from alma_jax.sweeps import Sweep, axis, product, zipped


def get_sweep(arg="1"):
  return Sweep({str(base)!r}, product(axis("learner", ["sm", "ens"]), zipped(axis("width", [4, 8]),
               axis("epochs", [1, 2])), axis("seed", range(int(arg)))), {{"num_megabatches": 4}})
""".encode()
  points = [dict(learner="sm", width=4, seed=0), dict(learner="gens", width=8, seed=1)]
  fixed = {"stream.num_megabatches": 4, "waiting_time": 2}
  path, root = folder / "sweep.py", folder / "runs"

  def use(example: tuple[str, Any]) -> None:
    kind, given = example
    if kind == "file":
      path.write_bytes(given)
      jobs.make(jobs.load(path), root)
      return
    if kind == "points":
      many, same = given
      jobs.make(sweeps.Sweep(str(base), many, same), root, {"train.epochs": "1"})
      return
    shutil.rmtree(root, ignore_errors=True)
    job = jobs.make(sweeps.Sweep(str(base), [dict(learner="sm")], {}), root)[0]
    job.workdir.mkdir(parents=True)
    for name, data in zip(("config.json", "summary.json"), given):
      (job.workdir / name).write_bytes(data)
    found = states.state(job, {})
    if found.kind == states.REFUSED:
      check_sentence(BadInput(found.line))
    states.estimate([job])
    assert Record(job.workdir).num_lines == 0
    (root / "failures.json").write_bytes(given[1])
    run_files.read_json(root / "failures.json")

  edited = st.tuples(st.one_of(damage.edited(points), damage.values), st.one_of(damage.edited(fixed), st.just({})))
  of_run = configs.to_dict(configs.parse(configs.base("sm"))) | {
      "data_fingerprint": "0" * 64, "format": run_files.FORMAT}
  return Target(st.one_of(
      st.tuples(st.just("file"), damage.damaged(source)), st.tuples(st.just("points"), edited),
      st.tuples(st.just("states"), st.tuples(damage.edited_json(json.loads(json.dumps(of_run))), damage.edited_json(
          {"cer": 1.0, "wall_seconds": 3.0, "compile_seconds": 1.0, "device": "cpu"})))), use)


def predictor(folder: pathlib.Path) -> Target:
  """Folders of predictors: those that are replaced, and exported ones."""
  run = _made(folder)["images"]
  with contextlib.redirect_stdout(io.StringIO()):
    export.main([f"--workdir={run}", f"--out={folder / 'exported'}"])
  whole = {"exported": _files(folder / "exported"), "replaced": _files(run / "predictor")}
  place = folder / "damaged"
  predictors._PAUSE = 0.0  # nobody replaces them here
  before = load(predictors.read(run / "predictor"))
  arrays = folder / "a.npz"
  np.savez(arrays, x=np.zeros((2, *before.known.shape), before.known.dtype))

  def use(example: tuple[str, str, bytes]) -> None:
    kind, name, data = example
    shutil.rmtree(place, ignore_errors=True)
    for each_name, content in whole[kind].items():
      (place / each_name).parent.mkdir(parents=True, exist_ok=True)
      (place / each_name).write_bytes(data if each_name == name else content)
    found = load(predictors.read(place), before)
    reader = examples.Reader(found.known.form, labelled=False)
    for batch in inputs.read([str(arrays)], reader, 2):
      answers.rows(batch.source, batch.row, *found.program(batch.x, 2), found.known.classes.names)

  def of_file(kind: str, name: str) -> st.SearchStrategy[Any]:
    data = whole[kind][name]
    found = damage.edited_json(json.loads(data)) if name.endswith(".json") else damage.damaged(data)
    return st.tuples(st.just(kind), st.just(name), found)

  files = [(kind, name) for kind, content in whole.items() for name in content if not name.endswith((".py", ".md"))]
  return Target(st.sampled_from(files).flatmap(lambda file: of_file(*file)), use)


def requests(folder: pathlib.Path) -> Target:
  """Bodies of requests to the HTTP service, through its ASGI application."""
  run = _made(folder)["images"]
  made = service.Service(load(predictors.read(run / "predictor")), None, 8, 100_000, 30.0, 1.0)
  app = service.app(made)
  x = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
  file = io.BytesIO()
  Image.fromarray(x[0]).save(file, "png")
  kinds = ("application/json", "application/octet-stream", "image/png", "application/json; charset=utf-16", "",
           "a" * 999)

  async def ask(kind: str, body: bytes, length: bytes | None) -> int:
    headers = [(b"content-type", kind.encode("latin1", "replace"))]
    headers += [(b"content-length", length)] if length is not None else []
    scope = dict(type="http", asgi={"version": "3.0"}, http_version="1.1", method="POST", path="/predict",
                 raw_path=b"/predict", query_string=b"", root_path="", headers=headers, scheme="http",
                 client=("127.0.0.1", 1), server=("127.0.0.1", 2))
    parts = [dict(type="http.request", body=body[:len(body) // 2], more_body=True),
             dict(type="http.request", body=body[len(body) // 2:], more_body=False)]
    sent: list[Any] = []

    async def receive() -> Any:
      return parts.pop(0) if parts else dict(type="http.disconnect")

    async def send(message: Any) -> None:
      sent.append(message)

    await app(scope, receive, send)
    answer = json.loads(sent[1]["body"])
    assert sent[0]["status"] == 200 or answer["detail"], answer
    return sent[0]["status"]

  def use(example: tuple[str, bytes, bytes | None]) -> None:
    code = asyncio.run(ask(*example))
    assert code < 500, code
    if code != 200:
      raise BadInput(f"status {code}")

  body = st.one_of(damage.edited_json({"inputs": x.tolist()}), damage.damaged(x.tobytes()),
                   damage.damaged(file.getvalue()), damage.damaged(file.getvalue()).map(damage.with_png_sums),
                   damage.edited_json({"inputs": [[1.0] * 8] * 8}), damage.values.map(
                       lambda value: damage.json_of({"inputs": value})))
  return Target(st.tuples(st.sampled_from(kinds[:3] * 4 + kinds), body, st.one_of(
      st.none(), st.sampled_from([b"5", b"-1", b"", b"1e3", b"9" * 30, b"\xb2"]))), use)


TARGETS: dict[str, Callable[[pathlib.Path], Target]] = {
    "config": config, "runs": runs, "pages": functools.partial(runs, with_pages=True), "resume": resume,
    "sweep": sweep, "predictor": predictor, "requests": requests}


def _made(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Finished runs, on images and on a stream of tasks."""
  places = {"images": folder / "images", "tasks": folder / "tasks"}
  images, tasks = configs.base("sm"), configs.tasks("mntdp")
  images.update_from_flattened_dict({**_SMALL, "log.predictor": True})
  tasks.update_from_flattened_dict(_TASKS | {"train.learning_rate": (0.01,), "train.weight_decay": (0.0,)})
  for config, place in zip((images, tasks), places.values()):
    if not place.exists():
      alma_jax.run(config, place)
  return places


def _of_files(whole: dict[str, dict[str, bytes]]) -> st.SearchStrategy[Any]:
  """(kind of the run, name of a file, what it holds then or None if it is missing)."""
  def of_file(kind: str, name: str) -> st.SearchStrategy[Any]:
    data = whole[kind][name]
    found = (damage.edited_lines([json.loads(line) for line in data.splitlines()]) if name.endswith("l")
             else damage.edited_json(json.loads(data)))
    return st.tuples(st.just(kind), st.just(name), st.one_of(found, found, found, st.none()))

  files = [(kind, name) for kind, content in whole.items() for name in content]
  return st.sampled_from(files).flatmap(lambda file: of_file(*file))


def _text(value: Any) -> str:
  try:
    return str(value)
  except ValueError:  # an integer of too many digits
    return "9" * 5000


def _files(folder: pathlib.Path) -> dict[str, bytes]:
  return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _command(module: Any, *args: str) -> None:
  """Runs a command in this process; raises BadInput if it ends with code 2 and one sentence.

  Its output can be printed as UTF-8, as on a terminal.
  """
  out, said = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    code = module.main(list(args))
  said.flush()
  lines = said.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
  assert code in (0, 2, 3), code  # 3: `alma status` of a run that needs help
  if code == 2:
    errors = [line for line in lines if not line.startswith("warning: ")]
    assert [error.partition(": ")[0] for error in errors] == ["error"], lines
    raise BadInput(errors[0])
