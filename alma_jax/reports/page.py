"""One self-contained HTML page of tables, findings and figures; readable on a phone."""
import base64
import html
import io
import re

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; max-width: 1100px;
       margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h3 { font-size: 1.05rem; margin-top: 1.75rem; }
.wide { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .875rem; white-space: nowrap; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e4e4e4; text-align: left; }
td.number, th.number { text-align: right; }
tbody tr:nth-child(even) { background: #f7f7f7; }
figure { margin: 1rem 0; } figcaption { color: #444; font-size: .9rem; margin-bottom: .5rem; }
figure img { display: block; max-width: none; width: 100%; }
ul { padding-left: 1.2rem; } li { margin: .35rem 0; }
nav a { margin-right: 1rem; } .note { color: #7a3b00; }
"""


def page(title, sections, notes=()):
  """HTML text.

  Args:
    title: of the page.
    sections: list of (heading, list of parts); a part is ("table", heading,
      Markdown table), ("list", heading, Markdown lines), or ("figure",
      caption, PNG bytes, width in pixels that it needs).
    notes: sentences about what was left out.
  """
  body = [f"<h1>{html.escape(title)}</h1>"]
  if len(sections) > 1:
    links = "".join(f'<a href="#s{i}">{html.escape(heading)}</a>' for i, (heading, _) in enumerate(sections))
    body.append(f"<nav>{links}</nav>")
  body += [f'<p class="note">{html.escape(note)}</p>' for note in notes]
  for i, (heading, parts) in enumerate(sections):
    body.append(f'<h2 id="s{i}">{html.escape(heading)}</h2>')
    body += [_part(*part) for part in parts]
  return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
          f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
          f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n")


def _part(kind, heading, content, width=0):
  if kind == "table":
    return f"<h3>{html.escape(heading)}</h3>\n{_table(content)}"
  if kind == "list":
    items = "".join(f"<li>{_inline(line.removeprefix('- '))}</li>" for line in content)
    return f"<h3>{html.escape(heading)}</h3>\n<ul>{items}</ul>"
  data = base64.b64encode(content).decode()
  caption = html.escape(heading)
  return (f'<figure><figcaption>{caption}</figcaption><div class="wide">'
          f'<img style="min-width:{width}px" alt="{caption}" src="data:image/png;base64,{data}"></div></figure>')


def _table(markdown):
  head, rule, *rows = ([cell.strip() for cell in line[2:-2].split(" | ")] for line in markdown.splitlines())
  number = ['class="number"' if dashes.endswith(":") else "" for dashes in rule]
  cells = lambda tag, row: "".join(f"<{tag} {kind}>{_inline(cell)}</{tag}>" for cell, kind in zip(row, number))
  body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
  return f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _inline(text):
  """Escaped, with Markdown's **bold** and `code`."""
  text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text, quote=False))
  return re.sub(r"`(.+?)`", r"<code>\1</code>", text)


def png(figure, dots=160):
  """PNG bytes of a matplotlib Figure."""
  file = io.BytesIO()
  figure.savefig(file, dpi=dots, metadata={"Software": None})
  return file.getvalue()
