"""`tunehub demo`, implemented by the builder, which has the networks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

import click

from tunehub.cli.options import json_option
from tunehub.target.tvm_generation import find_tvm, is_relay, require_relax
from tunehub_registry.installing import pip_install

_NEEDED = ("onnx", "onnxruntime")  # by the processes that compile and compare
_REMEDY = f"install what the demo needs: {pip_install('demo')}"
_RELAY = "for TVM up to 0.19 run `python -m benchmarks legacy` in a checkout, or use another environment for the demo"


@click.command()
@click.option("--network", "networks", multiple=True, metavar="NAME", help="Only this network; may be repeated.")
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Timed runs of each network.")
@click.option("--default-limit", type=click.FloatRange(min=0, min_open=True, max=86400), default=10.0,
              show_default=True, metavar="SECONDS", help="What the one run of TVM's default may take.")  # fmt: skip
@json_option
def demo(networks: Sequence[str], repeats: int, default_limit: float, as_json: bool) -> None:
    """Compare TVM's default, tunehub, onnxruntime and, where it is installed, OpenVINO on real networks."""
    if is_relay(installed.version if (installed := find_tvm()) else None):
        raise click.ClickException(f"the demo compiles Relax models, this TVM compiles Relay: {_RELAY}")
    missing = next((name for name in _NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise click.ClickException(f"the demo needs the module {missing}: {_REMEDY}")
    try:
        from tunehub_builder.bench.demo import run_demo
        from tunehub_builder.exceptions import BuilderError
        from tunehub_builder.networks.exceptions import NetworkError, UnknownNetworkError
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the demo needs the module {error.name}: {_REMEDY}") from None
    require_relax()
    try:
        code = run_demo(networks, as_json=as_json, repeats=repeats, default_s=default_limit)
    except UnknownNetworkError as error:
        raise click.UsageError(str(error)) from None
    except (BuilderError, NetworkError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(code)
