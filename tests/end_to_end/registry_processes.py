"""What the processes of the registry's stress tests do: `python registry_processes.py COMMAND PLAN.json`.

A process says what it did in a file, a line at a time, flushed before it goes on: what a killed one has said, holds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

_BETWEEN_VIEWS_S = 0.05  # the cores are for those who publish


def publish(plan: dict[str, Any]) -> None:
    """Publish the packages of `plan["packages"]` one by one; `plan["log"]` gets the name of each when it is done.

    Without `plan["online"]`, the online key, they are proposed.
    """
    from tunehub_registry.publishing.ledger import RetryPolicy
    from tunehub_registry.publishing.packages import publish as publish_packages
    from tunehub_registry.publishing.packages import read_package
    from tunehub_registry.publishing.proposals import ProposalLedger
    from tunehub_registry.publishing.signed import SignedLedger
    from tunehub_registry.stores.open import open_writable_store
    from tunehub_registry.trust.keys import load_signer

    ledger = (SignedLedger if plan["online"] else ProposalLedger)(
        open_writable_store(plan["store"]),
        Path(plan["root"]).read_bytes(),
        keys=[load_signer(plan["key"])],
        online=load_signer(plan["online"]) if plan["online"] else None,
    )
    done = set(Path(plan["log"]).read_text().split()) if Path(plan["log"]).exists() else set()
    with Path(plan["log"]).open("a") as log:
        for file in map(Path, plan["packages"]):
            if file.name not in done:
                publish_packages(ledger, [read_package(file)], retry=RetryPolicy(total_s=240.0))
                log.write(f"{file.name}\n")
                log.flush()


def sign(plan: dict[str, Any]) -> None:
    """Run the signing job again and again until `plan["stop"]` exists; `plan["log"]` gets a line for each run."""
    from tunehub_registry.publishing.signed import MetadataWriter
    from tunehub_registry.publishing.signing import sign_waiting
    from tunehub_registry.stores.open import open_writable_store
    from tunehub_registry.trust.keys import load_signer

    store, root = open_writable_store(plan["store"]), Path(plan["root"]).read_bytes()
    with Path(plan["log"]).open("a") as log:
        last = False
        while not last:
            last = Path(plan["stop"]).exists()
            done = sign_waiting(MetadataWriter(store, root, online=load_signer(plan["online"])))
            assert not done.refused, done.refused
            log.write(f"{len(done.adopted)}\n")
            log.flush()


def read(plan: dict[str, Any]) -> None:
    """Read the registry again and again until `plan["stop"]` exists; `plan["log"]` gets what was seen each time.

    A view is wrong when a name, shard or package in it cannot be had or has another hash, or when it lacks what an
    earlier view had.
    """
    from tunehub.registries.opening import open_registry
    from tunehub.registries.port import Access
    from tunehub.registries.trust_store import TrustStore
    from tunehub_registry.index import ShardEntry
    from tunehub_registry.package import open_package

    seen: dict[tuple[str, str], ShardEntry] = {}
    trust = TrustStore(Path(plan["trust"]))
    with Path(plan["log"]).open("a") as log:
        last = False
        while not last:
            last = Path(plan["stop"]).exists()
            registry = open_registry(plan["store"], Access(cache=Path(plan["cache"]), trust=trust))
            view = {(name, item.version): item for name in registry.names() for item in registry.shard(name).versions}
            lost = [key for key, entry in seen.items() if view.get(key) != entry]
            for key in view.keys() - seen.keys():
                with open_package(registry.fetch_package(view[key])) as package:
                    assert (package.manifest.name, package.manifest.version) == key
            seen = view
            log.write(json.dumps({"versions": len(view), "lost": lost}) + "\n")
            log.flush()
            time.sleep(_BETWEEN_VIEWS_S)


def start(plan: dict[str, Any]) -> None:
    """Open a hub as a compile does, look one record up, and say what came of it."""
    from tunehub.compiler.hub import open_hub
    from tunehub_registry.target import TargetDescriptor

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(TargetDescriptor(**plan["target"]), tvm_version="0.27.0", budget=plan["budget"])
        found = hub.lookup.by_exact(plan["key"])
        hub.close()
    chosen = hub.resolution.chosen
    said = {
        "package": chosen.label if chosen else None,
        "found": found is not None,
        "warnings": [str(item.message) for item in caught],
    }
    _say(said)


def fork_and_die(plan: dict[str, Any]) -> None:
    """Fork children that each `start`, and kill each after the next of `plan["delays"]`, in seconds.

    Forking after the imports makes the moment of the kill a moment of download, verification or indexing.
    """
    import signal

    import requests  # noqa: F401
    import tuf.ngclient  # noqa: F401

    import tunehub.compiler.hub
    import tunehub.registries.signed  # noqa: F401

    killed = 0
    for delay in plan["delays"]:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                start(plan)
            finally:
                os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    _say({"killed": killed})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    commands = {"publish": publish, "sign": sign, "read": read, "start": start, "fork_and_die": fork_and_die}
    commands[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
