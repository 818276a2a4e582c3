"""`make fuzz` runs every property of this folder, and those that stand beside their modules, on thousands of cases: --hypothesis-profile=fuzz.

The ordinary suite draws a few cases of each. At the end of a fuzz run the number of cases is printed, as Hypothesis counted them.
"""

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.fuzzing import counted

settings.register_profile("fuzz", max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if settings.get_current_profile_name() != "fuzz":
        return
    reports = [report for reports in terminalreporter.stats.values() for report in reports if isinstance(report, pytest.TestReport)]
    told = {report.nodeid: report.__dict__["_hypothesis_stats"] for report in reports if "_hypothesis_stats" in report.__dict__}
    cases = {nodeid: counted(stats, "passing") for nodeid, stats in told.items()}
    refused = sum(counted(stats, "invalid") for stats in told.values())
    terminalreporter.section("fuzz")
    for nodeid, count in cases.items():
        terminalreporter.write_line(f"{count:7,}  {nodeid}")
    terminalreporter.write_line(f"{sum(cases.values()):7,}  cases of {len(cases)} properties; {refused:,} draws besides were no cases")
