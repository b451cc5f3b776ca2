from ._ops import ops

halve, twice = ops.halve, ops.twice
