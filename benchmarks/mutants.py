"""Changes single lines of the package, and counts the changes that the tests notice.

    pip install coverage
    python benchmarks/mutants.py alma_jax/config streams=alma_jax/data/memory.py,alma_jax/data/feed.py

Each argument is a group of files: a folder or file, or several with a name before them. A mutant is the package with
one change, e.g. `<=` for `<`, or a call left out. Each group gets `--num` mutants, on lines drawn with `--seed`. The
groups take turns, so if you stop early, the results are a fair sample. A mutant runs in the tests that run its line,
the quickest first, up to half a minute of them, until one fails:

- killed: a test fails, and passes without the change;
- survived: all tests pass, so one is missing, or the change makes no difference;
- timeout: the tests take too long;
- uncovered: no test runs the line, slow tests aside.

The tests run in a copy of the files that git lists, OUT/tree. The suite runs once, to learn which tests run which
lines. OUT/mutants.jsonl gets a line for each mutant. Run the command again and it continues where it stopped.
"""
import argparse
import ast
import bisect
import collections
import datetime
import functools
import itertools
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
OUTCOMES = ("killed", "survived", "timeout", "uncovered")
MOST_SECONDS, MOST_TESTS = 30.0, 300  # of the tests that a mutant runs in
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "benchmarks.mutants"]
STRETCH = 4  # seconds that tests may take, per second of CPU time that they may use: on a busy machine they take longer
COVERAGE = """[run]
source =
  {out}/tree/alma_jax
  {out}/tree/tests
data_file = {out}/coverage/data
parallel = true
context = ${{RUNNING_TEST-}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse
"""
OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# f-strings are mostly messages; decorators and annotations hardly ever make a difference
UNCHANGED = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Delete, ast.Global)
UNCHANGED_FIELDS = ("annotation", "returns", "decorator_list", "type_params")


class Mutant(NamedTuple):
  """A change of a line. `name`: what its statement defines at import, "" if nothing; None inside a function."""
  file: str
  line: int
  old: str
  new: str
  begin: int  # in bytes
  end: int
  statement: int  # its first line
  name: str | None


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("groups", nargs="+", metavar="[NAME=]PATH[,PATH...]")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/mutants"))
  parser.add_argument("--num", type=int, default=150, help="mutants of a group")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--until", metavar="HH:MM", default="99", help="start no mutant after this time of the day")
  args = parser.parse_args()
  suite = Suite(args.out.resolve())
  groups = {}
  for group in args.groups:
    name, _, paths = group.rpartition("=")
    groups[name or paths.rsplit("/", 1)[-1]] = draw(suite.tree, paths.split(","), args.num, args.seed)
  results = args.out / "mutants.jsonl"
  rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
  done = {(row["group"], row["file"], row["line"]) for row in rows}
  turns = [(group, mutants[turn]) for turn in range(args.num) for group, mutants in groups.items()
           if turn < len(mutants) and (group, *mutants[turn][:2]) not in done]
  for group, mutant in turns:
    if f"{datetime.datetime.now():%H:%M}" < args.until:
      outcome, test = suite.judge(mutant)
      rows.append({"group": group, **mutant._asdict(), "outcome": outcome, "test": test})
      with results.open("a") as file:
        file.write(json.dumps(rows[-1]) + "\n")
  for group in groups:
    counts = collections.Counter(row["outcome"] for row in rows if row["group"] == group)
    share = counts["killed"] / max(1, counts.total() - counts["timeout"])
    print(f"{group:12s}", *(f"{name} {counts[name]:3d}  " for name in OUTCOMES), f"killed without timeouts {share:.0%}")


def draw(tree: pathlib.Path, paths: list[str], num: int, seed: int) -> list[Mutant]:
  """Up to `num` mutants of different lines, in random order."""
  by_line: dict[tuple[str, int], list[Mutant]] = collections.defaultdict(list)
  for path in map(tree.joinpath, paths):
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
      for mutant in mutants_of(file, str(file.relative_to(tree))):
        by_line[mutant.file, mutant.line].append(mutant)
  rng = random.Random(seed)
  return [rng.choice(by_line[line]) for line in rng.sample(list(by_line), min(num, len(by_line)))]


def mutants_of(path: pathlib.Path, name: str) -> Iterator[Mutant]:
  """All mutants of a file."""
  source = path.read_bytes()
  starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
  tree = ast.parse(source)
  for node, statement, defined, is_condition in _places(tree, tree, "", False):
    begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    old = ast.unparse(node)
    for new in _changes(node, is_condition):
      if new != old:
        yield Mutant(name, node.lineno, old, new, begin, end, statement.lineno, defined)


def _places(node: Any, statement: Any, name: str | None, is_condition: bool) -> Iterator[tuple[Any, Any, Any, bool]]:
  """(node, its statement, Mutant.name, whether it is a condition) of all nodes that may change."""
  if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
    return
  if isinstance(node, UNCHANGED) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
    return
  if isinstance(node, ast.stmt):
    statement = node
    if name is not None:
      target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)
      name = getattr(target, "id", getattr(target, "name", ""))
  if hasattr(node, "lineno"):
    yield node, statement, name, is_condition
  if isinstance(node, ast.Raise):
    return
  is_function = isinstance(node, ast.FunctionDef | ast.Lambda)
  for field, value in ast.iter_fields(node):
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.AST) and field not in UNCHANGED_FIELDS:
        inner = None if is_function and field == "body" else name
        yield from _places(child, statement, inner, field in ("test", "ifs"))


def _changes(node: Any, is_condition: bool) -> Iterator[str]:
  """The code that may replace a node."""
  if is_condition and not isinstance(node, ast.Compare | ast.UnaryOp):
    yield f"not ({ast.unparse(node)})"
  match node:
    case ast.Compare(ops=ops):
      for i, op in enumerate(ops):
        yield _with(node, ops=[*ops[:i], OPERATORS[type(op)](), *ops[i + 1:]])
    case (ast.BinOp(op=ast.Add(), left=ast.Constant(str()) | ast.JoinedStr())
          | ast.BinOp(op=ast.Add(), right=ast.Constant(str()) | ast.JoinedStr())):
      pass  # strings have no other operator
    case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
      yield _with(node, op=OPERATORS[type(op)]())
    case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
      yield f"({ast.unparse(operand)})"
    case ast.Constant(bool(value)):
      yield str(not value)
    case ast.Constant(int(value) | float(value)):
      yield repr(value + 1)
    case ast.Constant(str(value)) if value and " " not in value:  # others are prose
      yield "''"
    case ast.Return(ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
      yield "return None"
    case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Assign([ast.Attribute() | ast.Subscript()]):
      yield "pass"
    case ast.Continue():
      yield "break"
    case ast.Break():
      yield "continue"
    case ast.Call(ast.Name(name)) if name in FUNCTIONS:
      yield _with(node, func=ast.Name(FUNCTIONS[name]))
    case ast.Call(func, [first, second, *others]) if ast.unparse(func) != "isinstance":
      if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
        yield _with(node, args=[second, first, *others])


def _with(node: Any, **fields: Any) -> str:
  return ast.unparse(type(node)(**dict(ast.iter_fields(node)) | fields))


class Suite:
  """The tests of the package: which of them run a line, and whether they notice a mutant."""

  def __init__(self, out: pathlib.Path) -> None:
    import coverage
    self.tree, self._out = out / "tree", out
    self._trusted: set[str] = set()  # tests that pass one by one
    if not (out / "coverage/data").exists():
      self._collect()
    data = coverage.CoverageData(str(out / "coverage/data"))
    data.read()
    self._contexts = functools.cache(lambda file: data.contexts_by_lineno(str(self.tree / file)))
    reports = json.loads((out / "coverage/reports.json").read_text())
    self._seconds = {test: seconds for test, (seconds, outcome) in reports.items() if outcome == "passed"}
    shutil.copytree(self.tree, out / "mutant", dirs_exist_ok=True)

  def _collect(self) -> None:
    """Copies the files that git lists, and runs all tests."""
    out = self._out
    shutil.rmtree(out / "coverage", ignore_errors=True)
    (out / "coverage").mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
      (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / name, self.tree / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "alma_jax"], cwd=self.tree, check=True)
    (out / "coveragerc").write_text(COVERAGE.format(out=out))
    environ = {"COVERAGE_PROCESS_START": f"{out}/coveragerc", "REPORTS": f"{out}/coverage/reports.json"}
    subprocess.run([*PYTEST, "-n", "2", f"--junit-xml={out}/junit.xml"], cwd=self.tree, check=False,
                   env=os.environ | {"PYTHONPATH": str(self.tree)} | environ)
    subprocess.run([sys.executable, "-m", "coverage", "combine", f"--rcfile={out}/coveragerc"], check=True)

  def judge(self, mutant: Mutant) -> tuple[str, str]:
    """The outcome, and the test that fails ("" if the change prevents collecting tests)."""
    path, tests = self._out / "mutant" / mutant.file, self._choose(mutant)
    if not tests:
      return "uncovered", ""
    source = path.read_bytes()
    while tests:
      path.write_bytes(source[:mutant.begin] + mutant.new.encode() + source[mutant.end:])
      outcome, failing = self._run(tests)
      shutil.copy2(self.tree / mutant.file, path)
      if outcome != "killed" or failing in {"", *self._trusted} or self._run([failing])[0] == "survived":
        self._trusted.add(failing)
        return outcome, failing
      tests.remove(failing)  # it fails without the change, too
    return "survived", ""

  def _run(self, tests: list[str]) -> tuple[str, str]:
    """The outcome of some tests, and the one that fails."""
    out, reports = self._out, self._out / "reports.json"
    limit = 30 + 2 * round(sum(map(self._seconds.get, tests)))
    reports.unlink(missing_ok=True)
    shutil.rmtree(out / "tmp", ignore_errors=True)
    (out / "tmp").mkdir()
    environ = {"PYTHONPATH": f"{out}/mutant", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": f"{out}/tmp",
               "JAX_COMPILATION_CACHE_DIR": f"{out}/programs", "REPORTS": str(reports)}
    try:
      status = subprocess.run(
          [*PYTEST, "-x", "-n", "0", *tests], cwd=out / "mutant", env=os.environ | environ, capture_output=True,
          timeout=STRETCH * limit, check=False,
          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))).returncode
    except subprocess.TimeoutExpired:
      return "timeout", ""
    if status in (0, -signal.SIGXCPU):
      return ("timeout" if status else "survived"), ""
    outcomes = json.loads(reports.read_text()) if reports.exists() else {}
    return "killed", next((test for test, (_, outcome) in outcomes.items() if outcome == "failed"), "")

  def _choose(self, mutant: Mutant) -> list[str]:
    """The tests of a mutant, the quickest first.

    A statement that runs at import, such as a field of a config, counts as run by the tests that have its name in their
    ids or run a line of a function with it; if there are none, by those that run a function of its file.
    """
    if mutant.name is None:
      tests = self._tests(mutant.file, mutant.line) or self._tests(mutant.file, mutant.statement)
    else:
      word = re.compile(rf"(?:(?<=__)|(?<![A-Za-z0-9_])){mutant.name or '(?!)'}(?![A-Za-z0-9])(?!_[A-Za-z0-9])")
      tests = {test for test in self._seconds if word.search(test)}
      tests.update(*(self._tests(file, line) for file, line, text in self._lines if word.search(text)))
      tests = tests or set().union(*(self._tests(file, line) for file, line, _ in self._lines if file == mutant.file))
    chosen = sorted(tests, key=lambda test: (self._seconds[test], test))[:MOST_TESTS]
    return chosen[:max(1, bisect.bisect(list(itertools.accumulate(map(self._seconds.get, chosen))), MOST_SECONDS))]

  def _tests(self, file: str, line: int) -> set[str]:
    return self._seconds.keys() & self._contexts(file).get(line, [])

  @functools.cached_property
  def _lines(self) -> list[tuple[str, int, str]]:
    """(file, number, text) of the lines in functions of the package and the tests."""
    lines = []
    for path in [*(self.tree / "alma_jax").rglob("*.py"), *(self.tree / "tests").rglob("*.py")]:
      text = path.read_text()
      numbers = {number for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
                 for number in range(node.body[0].lineno, node.end_lineno + 1)}
      lines += [(str(path.relative_to(self.tree)), number, text.splitlines()[number - 1]) for number in numbers]
    return lines


# This file is also a plugin of pytest. It writes {test: (seconds, outcome)} to the file $REPORTS, and tells coverage
# which test runs, also in the processes that tests start.
_reports: dict[str, tuple[float, str]] = {}


def pytest_runtest_logstart(nodeid: str) -> None:
  if "COVERAGE_PROCESS_START" in os.environ:
    import coverage
    os.environ["RUNNING_TEST"] = nodeid
    coverage.Coverage.current().switch_context(nodeid)


def pytest_runtest_logfinish() -> None:
  pytest_runtest_logstart("")


def pytest_runtest_logreport(report: Any) -> None:
  duration, outcome = _reports.get(report.nodeid, (0.0, "passed"))
  _reports[report.nodeid] = duration + report.duration, outcome if report.passed else report.outcome


def pytest_sessionfinish(session: Any) -> None:
  if not hasattr(session.config, "workerinput"):  # of several processes, the first one gets all reports
    pathlib.Path(os.environ["REPORTS"]).write_text(json.dumps(_reports))


if __name__ == "__main__":
  main()
