"""The tables and lists of a study, which depend on the kind of its stream."""
from collections.abc import Sequence

from alma_jax.reports import ablation, findings, further, tables, task_tables
from alma_jax.reports.ablation import Ablation
from alma_jax.reports.parts import Bullets, Table
from alma_jax.reports.studies import Study


def of(study: Study, ablations: Sequence[Ablation] = ()) -> list[Table | Bullets]:
  """The tables and lists of a study."""
  more = [ablation.table(study, each) for each in ablations]
  if study.tasks:
    return [*task_tables.all_of(study), *further.all_of(study), *more, task_tables.columns(study)]
  diverged = [] if study.diverged.empty else [findings.HOW_DIVERGED]
  lists = [("Which waiting time is best?", [findings.HOW], findings.waiting_times(study)),
           ("Is growing better than a fixed learner with the same compute and memory?",
            [findings.HOW, findings.HOW_GROWTH], findings.growth(study))]
  bullets = [Bullets(heading, [*how, *diverged, *lines]) for heading, how, lines in lists if lines]
  return [*tables.all_of(study), *further.all_of(study), *more, *bullets]


def text(all_studies: Sequence[Study], more: Sequence[Sequence[Table]] = ()) -> str:
  """The tables of studies, for a terminal; `more` has further tables of each study."""
  blocks = []
  for study, others in zip(all_studies, more or [()] * len(all_studies)):
    blocks += [study.name] if len(all_studies) > 1 else []
    found = task_tables.all_of(study) if study.tasks else tables.all_of(study)
    blocks += [f"{table.heading}\n\n{table.markdown}" for table in (*found, *further.all_of(study), *others)]
  return "\n\n".join(blocks)
