"""placeholder until the branch sched is merged"""
from typing import NamedTuple


class Decision(NamedTuple):
  train: bool; law: object; regret: float | None; price: float
def fixed(kind, num_megabatches, *, waiting_time, trainings, exponent, factor):
  B=num_megabatches
  if kind=="every": return tuple(min(e,B) for e in range(waiting_time, B+waiting_time, waiting_time))
  t=[]
  if kind=="power":
    for s in range(1,trainings+1): t.append(max((t[-1] if t else 0)+1, round(B*(s/trainings)**exponent)))
    return tuple(t)
  t=[1]
  while max(t[-1]+1,round(factor*t[-1]))<=B: t.append(max(t[-1]+1,round(factor*t[-1])))
  return tuple(t)
def decide(*a): raise NotImplementedError
