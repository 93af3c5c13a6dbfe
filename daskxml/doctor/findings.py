"""What an examination has found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["fine", "hint", "problem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    topic
        What it belongs to: Python, packages, GPUs, UCX, ...
    text
        What was found.
    level
        ``problem``: daskxml does not work, or not as it is installed to; ``hint``: more could be.
    remedy
        The command that mends it, or what else to do; "" where nothing is to be done.
    """

    topic: str
    text: str
    level: Level = "fine"
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order of their topics."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> list[Finding]:
        """What must be mended."""
        return [finding for finding in self.findings if finding.level == "problem"]

    def lines(self) -> list[str]:
        """Return the report as text: all that was found, then what is to be done about it.

        Examples
        --------
        >>> missing = Finding(topic="packages", text="dask is missing", level="problem",
        ...                   remedy="pip install dask")
        >>> print(*Report((Finding(topic="Python", text="3.12.1"), missing)).lines(), sep="\\n")
        Python    3.12.1
        packages  dask is missing
        <BLANKLINE>
        1 problem
          dask is missing
            pip install dask
        """
        width = max(len(finding.topic) for finding in self.findings)
        told = [f"{topic:<{width}}  {text}" for topic, text in _by_topic(self.findings)]
        hints = [finding for finding in self.findings if finding.level == "hint"]
        count = len(self.problems)
        told += _section(f"{count} problem{'s' * (count > 1)}", self.problems)
        told += _section("possible", hints)
        return told if count else [*told, "", "no problems"]


def _by_topic(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Return the topic of each line, only once where several follow each other."""
    lines: list[tuple[str, str]] = []
    last = ""
    for finding in findings:
        lines.append(("" if finding.topic == last else finding.topic, finding.text))
        last = finding.topic
    return lines


def _section(title: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    lines = [line for it in findings for line in (f"  {it.text}", f"    {it.remedy}")]
    return ["", title, *(line for line in lines if line.strip())]
