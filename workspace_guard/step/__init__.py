"""One step from first to last: contract, stage, contain, judge, promote, record."""
