"""Pages and parts of pages, from templates that escape whatever is put into them."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskxml._version import __version__
from daskxml.observe.wording import rounded

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """Return what a template of `TEMPLATES` makes of values.

    Examples
    --------
    >>> render("events.html.jinja", lines=[("10:15:00", "<b> was lost")])
    '<div class="events"><div><time>10:15:00</time>&lt;b&gt; was lost</div></div>'
    """
    date = datetime.now(UTC).isoformat(timespec="minutes")
    return _environment().get_template(template).render(version=__version__, date=date, **values)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from daskxml.observe.svg import draw_svg

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FileSystemLoader(TEMPLATES),
    )
    environment.filters |= {
        "number": _number,
        "score": lambda value: "-" if value is None else f"{value:.4f}",
        "svg": lambda chart, **options: Markup(draw_svg(chart, **options)),  # escapes its own texts
        "json": lambda value: json.dumps(value, indent=2),
        "value": _value,
        "setting": lambda value: _number(value) if type(value) is float else _value(value),
    }
    return environment


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else rounded(value, digits)


def _value(value: Any) -> str:
    """Return a setting as its run file has it."""
    if value is None:
        return "-"
    return json.dumps(value) if isinstance(value, bool | list) else str(value)
