"""The parts of the page that are words: a run's headline, its workers, its events.

Whatever a user or a worker has named is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import quote

from daskxml.dashboard.headline import Headline, duration, title
from daskxml.dashboard.record import Line, Record


def headline_html(line: Headline, records: Iterable[Record]) -> str:
    """Return a run's headline, with links to the other runs."""
    share = 1.0 if line.progress is None else line.progress
    left = "" if line.left_s is None else f", about {duration(line.left_s)} left"
    facts = {
        "progress": line.limit + left,
        "time": duration(line.elapsed_s),
        "speed": f"{line.rows_per_s:,.0f} rows/s",
        "best": line.best or "not evaluated yet",
    }
    told = "".join(
        f"<span><span class=soft>{name}</span> <b>{escape(text)}</b></span>"
        for name, text in facts.items()
    )
    return (
        f"<div class=head><h1>{escape(line.title)}</h1>"
        f"<span class=state>{escape(line.state)}</span>"
        f"<span>{escape(line.strategy)}</span><span>{escape(line.data)}</span>"
        f"<span class=soft>run {escape(line.run)}</span></div>"
        f"<div class=bar><div style='width:{100 * share:.1f}%'></div></div>"
        f"<div class=facts>{told}</div>{_runs_html(line.run, records)}"
    )


def _runs_html(shown: str, records: Iterable[Record]) -> str:
    """Return a link to every run, newest first; nothing where there is only one."""
    known = list(records)
    if len(known) < 2:
        return ""
    links = [
        f"<a href='?run={quote(record.run)}'>{escape(title(record))} {escape(record.run)}</a> "
        f"<span class=soft>{'over' if record.is_over else 'under way'}</span>"
        for record in reversed(known)
        if record.run != shown
    ]
    return f"<div class=runs><span class=soft>other runs</span> {' '.join(map(_span, links))}</div>"


def _span(text: str) -> str:
    return f"<span>{text}</span>"


def legend_html(
    workers: Sequence[str], shades: Sequence[str], lost: Mapping[str, None], count: int
) -> str:
    """Return which colour is which worker's.

    Parameters
    ----------
    workers, shades
        Those that have lines, and their colours.
    lost
        Workers that are gone.
    count
        Workers of the run, of which some may have no line.
    """
    chips = [
        f"<span{' class=gone' if name in lost else ''}>{_square(shade)}{escape(name)}</span>"
        for name, shade in zip(workers, shades, strict=True)
    ]
    hidden = count - len(workers)
    more = [_span(f"and {hidden} more without lines")] if hidden > 0 else []
    return f"<div class=legend>{''.join(chips + more)}</div>"


def _square(color: str) -> str:
    return f"<i style='background:{color}'></i>"


def events_html(lines: Iterable[Line]) -> str:
    """Return the events, the latest first."""
    told = [
        f"<div><time>{time.strftime('%H:%M:%S', time.localtime(line.at_s))}</time>"
        f"{escape(line.text)}</div>"
        for line in reversed(list(lines))
    ]
    return f"<div class=events>{''.join(told) or 'nothing has happened yet'}</div>"
