"""The scenarios by name, in the order in which they run."""

from __future__ import annotations

from tests.reliability.failpoints.scenario import Scenario
from tests.reliability.failpoints.scenarios import cluster, pushes, reports, runs, tasks

SCENARIOS: dict[str, Scenario] = {
    one.name: one for module in (runs, reports, pushes, tasks, cluster) for one in module.SCENARIOS
}
