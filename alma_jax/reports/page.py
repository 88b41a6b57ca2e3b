"""One self-contained HTML page of tables, findings and figures; readable on a phone."""
import base64
import html
import io
import re
from collections.abc import Sequence

from matplotlib.figure import Figure

from alma_jax.reports.parts import Bullets, Part, Section, Table

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; max-width: 1100px;
       margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h3 { font-size: 1.05rem; margin-top: 1.75rem; }
/* Content that is wider than the page scrolls. A dark edge of the frame shows that there is more. Where the content
   begins or ends, a white edge that moves with the content hides it. */
.wide { overflow-x: auto; -webkit-overflow-scrolling: touch; background:
        linear-gradient(to right, #fff 50%, transparent) local left / 4rem 100% no-repeat,
        linear-gradient(to left, #fff 50%, transparent) local right / 4rem 100% no-repeat,
        linear-gradient(to right, rgb(0 0 0 / .4), transparent) left / 1.25rem 100% no-repeat,
        linear-gradient(to left, rgb(0 0 0 / .4), transparent) right / 1.25rem 100% no-repeat, #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .875rem; white-space: nowrap; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e4e4e4; text-align: left; }
td.number, th.number { text-align: right; }
tbody tr:nth-child(even) { background: rgb(0 0 0 / .03); }
figure { margin: 1rem 0; } figcaption { color: #444; font-size: .9rem; margin-bottom: .5rem; }
figure img { display: block; max-width: 100%; mix-blend-mode: multiply; /* the dark edge stays visible */ }
ul { padding-left: 1.2rem; } li { margin: .35rem 0; }
nav a { margin-right: 1rem; } .note { color: #7a3b00; }
"""
_NATURAL, _LEAST = 140, 95  # CSS pixels per inch of a figure: if there is room, and at least


def page(title: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
  """HTML text of a page; the notes stand above the sections."""
  body = [f"<h1>{html.escape(title)}</h1>"]
  if len(sections) > 1:
    links = "".join(f'<a href="#s{i}">{html.escape(section.heading)}</a>' for i, section in enumerate(sections))
    body.append(f"<nav>{links}</nav>")
  body += [f'<p class="note">{html.escape(note)}</p>' for note in notes]
  for i, section in enumerate(sections):
    body.append(f'<h2 id="s{i}">{html.escape(section.heading)}</h2>')
    body += [_part(part) for part in section.parts]
  return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
          f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
          f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n")


def png(figure: Figure, dots: int = 200) -> bytes:
  """PNG of a matplotlib Figure; `dots` are pixels per inch."""
  file = io.BytesIO()
  figure.savefig(file, dpi=dots, metadata={"Software": None})
  return file.getvalue()


def _part(part: Part) -> str:
  if isinstance(part, Table):
    return f"<h3>{html.escape(part.heading)}</h3>\n{_table(part.markdown)}"
  if isinstance(part, Bullets):
    items = "".join(f"<li>{_inline(line.removeprefix('- '))}</li>" for line in part.lines)
    return f"<h3>{html.escape(part.heading)}</h3>\n<ul>{items}</ul>"
  data = base64.b64encode(part.png).decode()
  caption = html.escape(part.caption)
  widths = f"width:{round(_NATURAL * part.width)}px;min-width:{round(_LEAST * part.width)}px"
  image = f'<img style="{widths}" alt="{caption}" src="data:image/png;base64,{data}">'
  return f"<figure><figcaption>{caption}</figcaption>{_wide(image)}</figure>"


def _wide(content: str) -> str:
  """A frame that scrolls content that is wider than the page: by touch, mouse or keys."""
  return f'<div class="wide" tabindex="0">{content}</div>'


def _table(markdown: str) -> str:
  head, rule, *rows = ([cell.strip() for cell in line[2:-2].split(" | ")] for line in markdown.splitlines())
  number = ['class="number"' if dashes.endswith(":") else "" for dashes in rule]
  cells = lambda tag, row: "".join(f"<{tag} {kind}>{_inline(cell)}</{tag}>" for cell, kind in zip(row, number))
  body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
  return _wide(f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>")


def _inline(text: str) -> str:
  """Escaped text; Markdown's **bold** and `code` become HTML."""
  text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text, quote=False))
  return re.sub(r"`(.+?)`", r"<code>\1</code>", text)
