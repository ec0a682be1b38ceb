"""`tunehub replay`: every record of a package on every supported release of TVM, each in an environment of its own.

`releases` is the table of releases; `environments` makes their environments, `worker` runs in one of them, `records`
and `logs` replay what there is for current TVM and for TVM up to 0.19; `run` starts the workers and makes the document.
"""
