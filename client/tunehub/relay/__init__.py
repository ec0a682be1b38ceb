"""TVM up to 0.19 (Relay): records of AutoTVM, the auto-scheduler and the graph tuner in TVM's own dispatch.

Modules here import tvm; nothing imports them unless such a TVM is installed.
"""
