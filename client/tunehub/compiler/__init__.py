"""Current TVM (0.25 and newer): the compile pipeline, from a Relax module to scheduled functions."""
