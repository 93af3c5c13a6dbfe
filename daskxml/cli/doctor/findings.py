"""The findings of an examination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined.

    Attributes
    ----------
    topic
        Python, packages, GPUs, UCX, ...
    text
        What was found.
    level
        ``problem``: daskxml does not work, or not as installed; ``hint``: something is optional.
    remedy
        The command that fixes it, or other advice; "" if nothing is to be done.
    """

    topic: str
    text: str
    level: Literal["fine", "hint", "problem"] = "fine"
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order of their topics."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> list[Finding]:
        """The findings that must be fixed."""
        return [finding for finding in self.findings if finding.level == "problem"]

    def lines(self) -> list[str]:
        """Return the report as text: all findings, then the remedies.

        Examples
        --------
        >>> missing = Finding("packages", "dask is missing", "problem", "pip install dask")
        >>> print(*Report((Finding("Python", "3.12.1"), missing)).lines(), sep="\\n")
        Python    3.12.1
        packages  dask is missing
        <BLANKLINE>
        1 problem
          dask is missing
            pip install dask
        """
        width = max(len(finding.topic) for finding in self.findings)
        lines = []
        for topic, findings in groupby(self.findings, key=lambda finding: finding.topic):
            first, *others = findings
            lines.append(f"{topic:<{width}}  {first.text}")
            lines += [f"{'':<{width}}  {finding.text}" for finding in others]
        hints = [finding for finding in self.findings if finding.level == "hint"]
        count = len(self.problems)
        lines += _section(f"{count} problem{'s' * (count > 1)}", self.problems)
        lines += _section("possible", hints)
        return lines if count else [*lines, "", "no problems"]


def _section(title: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    lines = [line for it in findings for line in (f"  {it.text}", f"    {it.remedy}")]
    return ["", title, *(line for line in lines if line.strip())]
