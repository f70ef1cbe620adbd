"""The style sheet of a report: light and dark, narrow and wide, on paper."""

from __future__ import annotations

from typing import Final

__all__ = ["STYLE"]

STYLE: Final = """
:root {
  --paper: #fdfdfb; --card: #ffffff; --ink: #1c1f23; --soft: #5a626c; --line: #d9dce0;
  --good: #1a6b3c; --bad: #a3141f; --unsure: #8a5300; --mark: #fff1c9; --link: #0b57a4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --card: #1c2024; --ink: #e8eaed; --soft: #a4acb5; --line: #363c43;
    --good: #6fce97; --bad: #ff8b8b; --unsure: #f2bb66; --mark: #4a3d12; --link: #8ec2ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; font-size: 1rem;
}
header, main, footer { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere; unicode-bidi: isolate; }
main { padding-top: 0; }
h1 { font-size: 1.6rem; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 1.8rem 0 .7rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
p { margin: .4rem 0; overflow-wrap: anywhere; unicode-bidi: isolate; }
a { color: var(--link); }
ul, ol { list-style: none; margin: 0; padding: 0; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }
code, pre, .hash { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code, pre { font-size: .86em; overflow-wrap: anywhere; unicode-bidi: isolate; }
pre {
  white-space: pre-wrap; margin: .3rem 0; padding: .6rem .7rem; background: var(--paper);
  border: 1px solid var(--line); border-radius: .3rem;
}
dl { display: grid; grid-template-columns: minmax(8rem, max-content) minmax(0, 1fr); gap: .25rem 1rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; unicode-bidi: isolate; min-width: 0; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: .4rem; padding: .9rem 1rem; margin: 0 0 .8rem;
}
.refusal { border-left: .3rem solid var(--bad); }
.unknown { border-left: .3rem solid var(--unsure); }
.status { font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); } .unsure { color: var(--unsure); }
.soft { color: var(--soft); font-size: .86em; }
.hash { font-size: .8em; overflow-wrap: anywhere; }
.hidden { background: var(--mark); border-radius: .15rem; padding: 0 .1em; }
.number { font-variant-numeric: tabular-nums; }
summary { cursor: pointer; color: var(--soft); font-size: .86em; }
article p:first-child { margin-top: 0; }
:target { outline: 2px solid var(--link); outline-offset: 2px; }
@media (max-width: 34rem) {
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dt { margin-top: .45rem; font-size: .86em; }
  .card { padding: .7rem .75rem; }
}
@media print {
  :root {
    --paper: #ffffff; --card: #ffffff; --ink: #000000; --soft: #444444; --line: #bbbbbb;
    --good: #000000; --bad: #000000; --unsure: #000000; --mark: #eeeeee; --link: #000000;
  }
  body { font-size: 9.5pt; }
  header, main, footer { max-width: none; padding: 0; }
  nav { display: none; }
  li.card, article p, dd > p, .refusal pre { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  pre { break-inside: auto; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
}
"""
