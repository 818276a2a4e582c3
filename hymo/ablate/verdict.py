"""The seven things that may be said of an arm."""

from enum import StrEnum


class Verdict(StrEnum):
    """What may be said of an arm, in order of precedence."""

    UNSTABLE = "unstable"  # a seed diverged; it counts, it is never dropped
    LR_UNRESOLVED = "lr unresolved"  # the best learning rate lies at the edge of those tried
    BETTER = "better"
    WORSE = "worse"
    NEGLIGIBLE = "real but negligible"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
