"""What shows runs: options of ``report`` and ``compare``, and the loggers of other commands."""

from __future__ import annotations

import argparse

from daskxml.cli.values import level


def add_report(command: argparse.ArgumentParser) -> None:
    """Add the options of ``daskxml report``."""
    _add_runs(command)
    command.add_argument(
        "--out",
        metavar="DIR",
        help="where the report is written (default: report/ in the run's directory, or beside the "
        "first of several); files of an earlier report are replaced",
    )
    command.add_argument(
        "--metric", metavar="NAME", help="what is compared (default: the target_metric)"
    )
    command.add_argument("--at", type=level, metavar="VALUE", help=_AT)
    command.add_argument("--no-png", action="store_true", help="write no pictures beside the page")


def add_compare(command: argparse.ArgumentParser) -> None:
    """Add the options of ``daskxml compare``."""
    _add_runs(command)
    command.add_argument(
        "--metric", metavar="NAME", help="what is compared (default: the target_metric)"
    )
    command.add_argument("--at", type=level, metavar="VALUE", help=_AT)
    command.add_argument("--json", action="store_true", help="print one JSON object")


def add_log(command: argparse.ArgumentParser) -> None:
    """Add the option that names loggers."""
    command.add_argument(
        "--log",
        action="append",
        default=[],
        dest="loggers",
        metavar="LOGGER",
        help="tensorboard:DIR, mlflow:URI or wandb:PROJECT, what follows the colon may be left "
        "out; may be given again",
    )


_AT = "level of the metric whose time is told (default: 95%% of the best of all runs)"


def _add_runs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "runs", nargs="+", metavar="DIR", help="directory of a run, or a folder of several"
    )
