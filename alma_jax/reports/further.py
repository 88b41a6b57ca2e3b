"""The tables of the metrics of `log.metrics`: their newest values, for each kind of run and each class."""
import pandas as pd

from alma_jax.reports import studies, tables
from alma_jax.reports.parts import Table
from alma_jax.reports.read import Values
from alma_jax.reports.studies import Study

_MOST = 12  # classes of a table
_PREFIX = "further "  # of columns, so that a class may be called as a column of runs


def all_of(study: Study) -> list[Table]:
  """A table of the numbers, and for each metric with a value for each class a table with a column for each class."""
  numbers: dict[str, Values] = {}  # by run
  of_classes: dict[str, dict[str, Values]] = {}  # by metric and run
  for run, values in study.further.items():
    for key, value in values.items():
      if isinstance(value, dict):
        of_classes.setdefault(key, {})[run] = value
      else:
        numbers.setdefault(run, {})[key] = value
  found = [("Further metrics, the last values", pd.DataFrame.from_dict(numbers, "index"))] if numbers else []
  for key, classes in of_classes.items():
    table = pd.DataFrame.from_dict(classes, "index")
    worst = table.mean().sort_values(ascending=False, kind="stable").index[:_MOST]
    which = f", the {_MOST} of {len(table.columns)} classes with the largest" if len(table.columns) > _MOST else ""
    found.append((f"{key}, the last values{which}", table[[c for c in table if c in worst]]))
  return [Table(f"{heading}: {tables.MEANS}", _table(study, values)) for heading, values in found]


def _table(study: Study, values: pd.DataFrame) -> str:
  """A row for each kind of run with values, which have a row for each run."""
  columns = {f"{_PREFIX}{column}": column for column in values}
  runs = study.runs.merge(values.add_prefix(_PREFIX), left_on="run", right_index=True)
  rows = [tables.names(row, study.factors) | {"seeds": str(row["seeds"])}
          | {head: tables.mean(row[column], row[f"{column}_sd"], ".4f") for column, head in columns.items()}
          for _, row in studies.means(study._replace(runs=runs), *columns).iterrows()]
  return tables.markdown(rows)
