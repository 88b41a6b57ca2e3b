"""Figures of matplotlib as small SVG files whose colours follow the reader's theme, light or dark."""
import colorsys
import io
import pathlib
import re
from collections.abc import Collection
from typing import Any

import matplotlib
import matplotlib.colors
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.text import Text

PAPER, DARK = "#ffffff", "#1e2129"  # of light and dark pages
_LIFT = 0.4  # the share of white in the colours on a dark page, as in reports
_PIXELS = 1.9  # of a point of the figure, so that the letters have the size of those of a page
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"
_HALO = "[id^=halo] text { paint-order: stroke; stroke: var(--ffffff); stroke-width: 2px; }"
_COLOUR = r"(?<=[:\"] )#([0-9a-f]{6})"
_ON_CELLS = {"black": "#000001", "white": "#fffffe"}  # texts on cells, which have their colours in both themes


def write(figure: Figure, path: pathlib.Path, description: str | None = None) -> None:
  """Writes a figure as an SVG file, which may store a description."""
  cells: Any = figure.findobj(QuadMesh)
  texts: Any = figure.findobj(Text)
  for i, text in enumerate(texts):
    if text.get_path_effects():  # which would be outlines of letters
      text.set_path_effects([])
      text.set_gid(f"halo{i}")
    elif any(text in mesh.axes.texts for mesh in cells):
      text.set_color(_ON_CELLS[text.get_color()])
  file = io.StringIO()
  with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "alma_jax"}):
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Description": description})
  kept = {matplotlib.colors.to_hex(colour) for mesh in cells for colour in mesh.get_facecolor()} - {PAPER}
  path.write_text(_themed(_small(file.getvalue()), kept), encoding="utf-8")


def _themed(svg: str, kept: Collection[str]) -> str:
  """An SVG file of matplotlib whose colours, but for those that are `kept`, follow the theme of the page."""
  colours = sorted(({f"#{colour}" for colour in re.findall(_COLOUR, svg)} | {"#000000", PAPER}) - set(kept))
  values = lambda theme: " ".join(f"--{colour[1:]}: {theme(colour)};" for colour in colours)
  svg = re.sub(_COLOUR, lambda match: match[0] if match[0] in kept else f"var(--{match[1]})", svg)
  looks = {look: f"s{i}" for i, look in enumerate(dict.fromkeys(re.findall(r' style="([^"]*)"', svg)))}
  svg = re.sub(r' style="([^"]*)"', lambda match: f' class="{looks[match[1]]}"', svg)
  rules = "\n".join(f".{name} {{ {look} }}" for look, name in looks.items())
  style = (f"<style>svg {{ {values(str)} }} text {{ fill: var(--000000); font-family: {_FONT}; }} {_HALO}\n{rules}\n"
           f"@media (prefers-color-scheme: dark) {{ svg {{ {values(_dark)} }} }}</style>")
  return re.sub(r"(<svg [^>]*>)", lambda match: f"{match[1]}\n {style}", svg, count=1)


def _dark(colour: str) -> str:
  """The colour of a light page, on a dark one: colours are mixed with white; the lightness of greys is turned round."""
  if colour in (PAPER, *_ON_CELLS.values()):
    return DARK if colour == PAPER else colour
  rgb: Any = matplotlib.colors.to_rgb(colour)
  _, lightness, saturation = colorsys.rgb_to_hls(*rgb)
  if saturation < 0.02:
    rgb = (max(0.92 - 0.8 * lightness, 0.25),) * 3
  else:
    rgb = tuple(part + _LIFT * (1 - part) for part in rgb)
  return matplotlib.colors.to_hex(rgb)


def _small(svg: str) -> str:
  """An SVG file of matplotlib in the size for pages, with short paths and numbers, and without names of fonts."""
  svg = re.sub(r"\n\s+", "\n", svg)
  svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
  svg = re.sub(r'\bd="([^"]*)"', lambda match: f'd="{_path(match[1])}"', svg)
  number = lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
  svg = re.sub(r' [a-z]+="[^"]*\d\.\d{3}[^"]*"', lambda match: re.sub(r"-?\d+\.\d{3,}", number, match[0]), svg)
  size = lambda match: f'{match[1]}="{_PIXELS * float(match[2]):.0f}"'
  return re.sub(r'\b(width|height)="([\d.]+)pt"', size, svg)


def _path(path: str) -> str:
  """A path of straight lines in distances from the last point, in steps of 0.05 points; others as they are."""
  parts = re.findall(r"([A-Za-z])([^A-Za-z]*)", path)
  if {letter for letter, _ in parts} - set("MLz"):
    return " ".join(path.split())
  short, x, y = "", 0, 0
  for letter, numbers in parts:
    before = x, y
    x, y = (round(20 * float(number)) for number in numbers.split()) if numbers.strip() else before
    right, down = (x - before[0]) / 20, (y - before[1]) / 20
    if letter == "L":
      short += f"l{right:g} {down:g}" if right and down else f"h{right:g}" if right else f"v{down:g}" if down else ""
    else:
      short += "z" if letter == "z" else f"M{x / 20:g} {y / 20:g}"
  return re.sub(r"(?<!\d)0\.", ".", short)
