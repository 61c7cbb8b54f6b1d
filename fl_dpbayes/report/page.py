"""The report of a run: one page that needs no other file, no script and no network."""

import re
from collections import defaultdict
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fl_dpbayes.config import PREDICTORS
from fl_dpbayes.files import write_atomically
from fl_dpbayes.report import wording
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.measure_tables import measure_tables
from fl_dpbayes.report.model_card import model_card
from fl_dpbayes.report.numbers import unbroken
from fl_dpbayes.report.page_tables import FEW, facts, run_tables, spent_alike
from fl_dpbayes.report.run_files import read_epsilon_curves, read_summary
from fl_dpbayes.report.stylesheet import STYLESHEET
from fl_dpbayes.report.summary import Summary, shortened
from fl_dpbayes.report.template import CONTENTS, GLOSSARY, GLOSSARY_SECTION, RUN
from fl_dpbayes.report.term_links import link_terms
from fl_dpbayes.report.verdicts import TONES, verdicts

PAGE = "report.html"
MOST_OF_DESCRIPTION = 240
# Tables of more stand as one block a row on anything narrower than a desk.
FEW_COLUMNS = 6
# A longer one must break on a telephone.
SHORT_NAME = re.compile(r"(?=\S{3,24}$)\S*-\S*")
HEADING = re.compile(r'<h2 id="(.+?)">(.+?)</h2>')


def write_report(run_dir: Path | str) -> Path:
    """Write `report.html` and its figures from a run directory's summary and `privacy.csv`.

    Raises:
        UserError: If the folder is not a run directory, a record in it is damaged, or it cannot
            be written to.
    """
    # No first round waits for half a second of imports.
    from fl_dpbayes.report.figures import draw_figures

    folder = Path(run_dir)
    run = read_summary(folder)
    return write_page(
        folder,
        RUN,
        title=f"{run.scenario}: privacy and calibration",
        run=run,
        answer=answer(run),
        verdicts=verdicts(run),
        words=wording,
        facts=facts(run),
        few=FEW,
        subtitle=shortened(run.description, MOST_OF_DESCRIPTION),
        spent_alike=spent_alike(run),
        card=model_card(run),
        missing=_missing_baselines(run),
        **run_tables(run),
        **draw_figures(folder, run, read_epsilon_curves(folder)),
        **measure_tables(run),
    )


def _missing_baselines(run: Summary) -> dict[str, str]:
    """Return why each simpler predictor that is missing was not computed, by its name."""
    if run.baselines is None:
        return {}
    return {PREDICTORS.get(name, name): why for name, why in run.baselines.missing.items()}


def write_page(folder: Path, template: str, **content: object) -> Path:
    """Fill a page's template and write it as `report.html` of a folder.

    Every value is escaped unless it is one of our own figures.

    Args:
        folder: Where the page goes.
        template: One of `report.template`.
        content: `title` and what else the template names.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["unbroken"] = unbroken
    environment.filters["whole_names"] = _whole_names
    environment.globals["few_columns"] = FEW_COLUMNS
    environment.globals["tones"] = defaultdict(str, TONES)
    page = environment.from_string(template).render(stylesheet=Markup(STYLESHEET), **content)
    links = [f'<li><a href="#{name}">{title}</a></li>' for name, title in HEADING.findall(page)]
    linked = link_terms(page.replace(CONTENTS, "".join(links), 1))
    glossary = environment.from_string(GLOSSARY_SECTION).render(terms=linked.terms)
    page = linked.page.replace(GLOSSARY, glossary, 1)
    write_atomically(folder / PAGE, page)
    return folder / PAGE


def _whole_names(text: str) -> Markup:
    """Escape a text, in which no short name ends a line at its hyphen."""
    words = [
        Markup('<span class="name">{}</span>').format(word) if SHORT_NAME.fullmatch(word) else word
        for word in text.split(" ")
    ]
    return Markup(" ").join(words)
