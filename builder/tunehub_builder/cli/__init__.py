"""The builder's commands, a module each. `tunehub` finds them by name here and imports one only when it is called.

Exit codes: 0 done, 1 the thing asked for failed, 2 wrong usage.
"""

from __future__ import annotations

COMMANDS = {
    "attest": "tunehub_builder.cli.attest:attest",
    "check": "tunehub_builder.cli.check:check",
    "distill": "tunehub_builder.cli.distill:distill",
    "import": "tunehub_builder.cli.import_logs:import_logs",
    "networks": "tunehub_builder.cli.networks:networks",
    "pack": "tunehub_builder.cli.pack:pack",
    "rebuild": "tunehub_builder.cli.rebuild:rebuild",
    "replay": "tunehub_builder.cli.replay:replay",
    "review": "tunehub_builder.cli.review:review",
    "rows": "tunehub_builder.cli.rows:rows",
    "submit": "tunehub_builder.cli.submit:submit",
    "tune": "tunehub_builder.cli.tune:tune",
}
