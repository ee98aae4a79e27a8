"""The three ways in which a run can be over, as its result.json or failure.json and the tables name them."""

import dataclasses
from typing import Literal

from dctps.train.records import Outcome

DONE = "done"  # there is a result
COLLAPSED = "collapsed"  # the pruning method found no network of the density asked for, which is a finding
FAILED = "failed"  # an error ended the run


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureRecord(Outcome):
    """What failure.json holds."""

    task: str
    status: Literal["collapsed", "failed"]
    reason: str
    details: str
