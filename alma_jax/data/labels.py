"""What labels that are numbers mean where classes have names. Imports nothing slow."""
from collections.abc import Sequence


def are_names(names: Sequence[str]) -> bool:
  """Whether a number among the labels is the name of a class; else it is the place of the class in `names`, from 0.

  It is one if a class is called by a number that is not its place. A live stream without classes.txt numbers classes as
  they come: if its first labels are 5 and 3, these are the names of the classes 0 and 1.
  """
  return any(name.isdecimal() and name != str(place) for place, name in enumerate(names))
