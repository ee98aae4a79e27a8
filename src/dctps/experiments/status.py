"""The three ways in which a run can be over, as its result.json or failure.json and the tables name them."""

DONE = "done"  # there is a result
COLLAPSED = "collapsed"  # the pruning method found no network of the density asked for, which is a finding
FAILED = "failed"  # an error ended the run
