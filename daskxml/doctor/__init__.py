"""What is installed on this machine, what is missing or clashes, and the commands that mend it.

It runs wherever Python does: nothing but the standard library is taken for granted.
"""

from daskxml.doctor.examination import examine
from daskxml.doctor.findings import Finding, Report

__all__ = ["Finding", "Report", "examine"]
