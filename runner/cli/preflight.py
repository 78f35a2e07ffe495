"""The preflight of a run: the problems of its GPU and TPU cells, printed once before anything is measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.cli.options import executors_of

if TYPE_CHECKING:
    from runner.campaign import Arm
    from runner.preflight.cells import Preflight
    from runner.session import ArmAsked, Session


def before_measuring(args: argparse.Namespace, session: Session) -> Preflight | None:
    """Return the preflight of what is pending, its problems printed; None if no cell needs one.

    This machine is not examined for cells of another one, for which a test's executor stands, too.
    """
    cells = [(step.cell.settings, step.cell.task) for step in session.pending]
    if all(settings.device == "cpu" for settings, _ in cells):
        return None
    found: Preflight | None = args.seams.preflight
    contract = executors_of(args).contract
    if found is None and args.seams.executor is None and contract.local_machine:
        from runner.preflight.cells import preflight_of

        found = preflight_of([settings for settings, _ in cells], in_containers=not contract.local_software)
    shown: set[str] = vars(args).setdefault("preflight_printed", set())
    for line in found.lines(cells) if found else ():
        if line not in shown:
            print(f"preflight: {line}", file=sys.stderr)
        shown.add(line)
    return found


def printed(args: argparse.Namespace) -> Collection[str]:
    """Return the problems that this command has printed so far."""
    found: Collection[str] = vars(args).get("preflight_printed", ())
    return found


def behind(preflight: Preflight | None, asked: ArmAsked, arm: Arm) -> Arm:
    """Return an arm that starts no cell which the preflight refuses; another Python's builds are not judged."""
    if preflight is None:
        return arm
    from runner.preflight.executor import CheckedExecutor

    own = preflight if asked.python is None else replace(preflight, versions={})
    return replace(arm, executor=CheckedExecutor(arm.executor, own))
