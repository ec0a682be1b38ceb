"""The builder for TVM 0.19 and older, which has Relay: AutoTVM, the auto-scheduler and the graph tuner.

Importing this package imports no TVM; its functions do, when they are called.
"""
