"""The style of the report page, on a telephone, a desk and paper."""

_STACKED = """
  {part} table, {part} tbody, {part} tr, {part} td {{ display: block; width: 100%; }}
  {part} thead {{ position: absolute; width: 1px; height: 1px; overflow: hidden; \
    clip-path: inset(50%); }}
  {part} tr {{ padding: .45rem .65rem; border-top: 1px solid var(--line); }}
  {part} tbody tr:first-child {{ border-top: 0; }}
  {part} td, {part} td.text {{ display: flow-root; position: static; min-width: 0; \
max-width: none;
    padding: .08rem 0 .08rem 8.6rem; border: 0; text-align: left; white-space: normal; }}
  {part} td::before {{ content: attr(data-label); float: left; width: 8.2rem; \
margin-left: -8.6rem;
    color: var(--muted); font-size: .8rem; font-weight: 400; line-height: 1.4; }}
  {part} td:first-child, {part} td.text:first-child {{ padding-left: 0; font-weight: 600; }}
  {part} td:first-child::before {{ content: none; }}
  {part} tr.more td:first-child {{ display: none; }}
"""


def _stacked(part: str) -> str:
    """Let each row of a table stand as one block, where it would not fit."""
    return _STACKED.format(part=part)


STYLESHEET = (
    """
:root { color-scheme: light; --paper: #fff; --ink: #1f2933; --muted: #5b6770; --line: #dfe4e8; \
--wash: #f6f8f9;
  --accent: #0072b2; --caution: #fdf5ee; --grid: #e3e7ea; --band: #dfe5ea; --edge: #b6bfc6; \
--blue: #0072b2;
  --vermillion: #d55e00; --green: #009e73; --purple: #cc79a7; --orange: #e69f00; --sky: #56b4e9;
  --bad-ink: #b34700; --warn-ink: #8a5a00; --good-ink: #00795a; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --paper: #14181b; --ink: #e4e8eb; --muted: #a3b0ba; --line: #363f46; \
--wash: #1e2429;
    --accent: #6cb8e6; --caution: #2e2219; --grid: #2a3238; --band: #333d45; --edge: #5b6770; \
--blue: #56a9e0;
    --vermillion: #f0843c; --green: #2fbf95; --purple: #dc93bb;
    --bad-ink: #f0843c; --warn-ink: #e0a33e; --good-ink: #2fbf95; }
}
* { box-sizing: border-box; } html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, \
sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { margin: 0 0 .25rem; font-size: .95rem; font-weight: 600; color: var(--muted); overflow-wrap: \
anywhere; }
h2 { margin: 3.25rem 0 .5rem; font-size: 1.3rem; line-height: 1.3; font-weight: 650; \
letter-spacing: -.01em; }
h3 { margin: 2rem 0 .5rem; font-size: 1.02rem; font-weight: 650; }
p { margin: .5rem 0 1rem; max-width: 44rem; overflow-wrap: anywhere; }
.answer p { font-size: 1.06rem; max-width: 48rem; }
.answer p.lead { margin: 0 0 1rem; font-size: 1.4rem; line-height: 1.42; font-weight: 500; \
letter-spacing: -.012em; }
.note { color: var(--muted); font-size: .92rem; }
.caution { margin: 1rem 0; padding: .8rem 1.1rem; border-left: 3px solid #d55e00; background: \
var(--caution);
  border-radius: 0 6px 6px 0; max-width: 48rem; }
.caution p { margin: .3rem 0; font-size: .98rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1.5rem 0 0; padding: 0; \
list-style: none;
  font-size: .9rem; }
a { color: var(--accent); }
a.term { color: inherit; text-decoration: underline dotted var(--muted); text-underline-offset: \
.2em; }
.scroll { overflow: auto; max-height: 56rem; margin: .75rem 0 1.25rem; border: 1px solid \
var(--line);
  border-radius: 8px; container-type: scroll-state;
  background: linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% no-repeat \
local,
    linear-gradient(to left, var(--edge), transparent) right / 1.2rem 100% no-repeat scroll; }
.scroll::before { content: "scroll \\2192"; display: none; position: sticky; left: 0; width: 5rem;
  padding: .1rem .65rem; color: var(--accent); font-size: .78rem; }
@container scroll-state(scrollable: bottom) { .scroll::before { display: block; content: "scroll \
\\2193"; } }
@container scroll-state(scrollable: right) { .scroll::before { display: block; content: "scroll \
\\2192 \\2193"; } }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .65rem; text-align: right; vertical-align: baseline; white-space: nowrap; }
th { min-width: 4.6rem; white-space: normal; vertical-align: bottom; background: var(--wash); \
color: var(--muted);
  font-size: .8rem; font-weight: 600; border-bottom: 1px solid var(--line); position: sticky; top: \
0; z-index: 1; }
td { border-top: 1px solid var(--grid); } tbody tr:first-child td { border-top: 0; }
.text { text-align: left; } td.text { min-width: 6.5rem; max-width: 22rem; white-space: normal; }
td.text:first-child { min-width: 9rem; overflow-wrap: anywhere; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--paper); }
th:first-child { background: var(--wash); z-index: 2; }
td.text:last-child { min-width: 8rem; }
tr.more td { border-top-color: transparent; }
.scroll.whole { max-height: none; }
.name { white-space: nowrap; }
.tone { font-weight: 600; }
.tone.bad { color: var(--bad-ink); }
.tone.warn { color: var(--warn-ink); }
.tone.good { color: var(--good-ink); }
.tone.open { color: var(--muted); font-weight: 400; }
td small { margin-left: .3rem; color: var(--muted); font-size: .82rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); \
gap: 1.5rem 2rem;
  margin: 1rem 0; }
figure { margin: 0; min-width: 0; max-width: 29rem; }
figure svg { display: block; width: 100%; height: auto; } figure svg * { stroke-linejoin: round; \
stroke-linecap: butt; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--accent); font-size: .9rem; \
padding: .2rem 0; }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; border-radius: 3px; }
details.guide { padding: .5rem 1rem; background: var(--wash); border-radius: 8px; max-width: \
48rem; }
details.guide p { font-size: .94rem; }
dl { display: grid; grid-template-columns: fit-content(18rem) minmax(0, 1fr); gap: .35rem 1.25rem; \
margin: .75rem 0;
  font-size: .92rem; }
dt { color: var(--muted); overflow-wrap: anywhere; } dd { margin: 0; overflow-wrap: anywhere; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); \
white-space: nowrap; }
@media screen and (max-width: 62rem) {"""
    + _stacked(".wide")
    + """}
@media screen and (max-width: 40rem) {"""
    + _stacked(".scroll")
    + """}
@media (max-width: 34rem) {
  main { padding: 1.5rem 1rem 3rem; }
  .answer p.lead { font-size: 1.16rem; } .answer p { font-size: 1rem; }
  h2 { margin-top: 2.5rem; font-size: 1.16rem; }
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; } dd { margin-bottom: .5rem; }
  th, td { padding: .45rem .6rem; } .scroll { max-height: 38rem; }
  td.text:first-child { min-width: 6.5rem; }
}
@media print {
  @page { size: A4; margin: 16mm 14mm; } html { font-size: 11px; }
  main { max-width: none; padding: 0; }
  p, .lead, .answer p, .caution, details.guide { max-width: none; }
  h2, h3, thead { break-after: avoid; } tbody tr:first-child { break-before: avoid; }
  figure, tr, .caution { break-inside: avoid; }
  .scroll { overflow: visible; max-height: none; border: 0; background: none; }
  .scroll::before { display: none !important; }
  details.card { display: block !important; }
  details.card::details-content { content-visibility: visible; display: block; }
  th, td { padding: .35rem .4rem; }
  td.text:first-child, td.text:last-child { min-width: 0; }
  .figures { grid-template-columns: 1fr 1fr; } details:not([open]) { display: none; }
}
"""
)
