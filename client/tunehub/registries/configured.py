"""The registries that options name: configured ones first, the embedded one last; or a lock file's packages alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.attested import Attesters
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.embedded import EMBEDDED, embedded_registry
from tunehub.registries.ordered import Registries
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.stores.port import Deadline

if TYPE_CHECKING:  # imported where they are used: a lock file needs none of them
    from tunehub.options import Options
    from tunehub.registries.port import Access, OnProblem, OnWarning, Registry
    from tunehub.registries.trust_store import TrustStore


def open_registries(
    addresses: Sequence[str],
    *,
    offline: bool,
    on_problem: OnProblem,
    access: Access | None = None,
    attesters: Attesters | None = None,
) -> Registries:
    """Open the configured registries and the embedded one; those that cannot be opened go to `on_problem`.

    `access` is with what they are read, by default without a cache and without trusted roots; `attesters` are as in
    `Registries`.
    """
    from tunehub.registries.opening import open_registry
    from tunehub.registries.port import Access

    access = replace(access or Access(), offline=offline, on_problem=on_problem)
    registries: list[Registry] = []
    for address in addresses:
        try:
            registries.append(open_registry(address, access))
        except RegistryUnreadableError as error:
            on_problem(error)
    registries.append(open_registry(embedded_registry(), access, label=EMBEDDED))
    configured = filter(None, map(_normalised, addresses))
    return Registries(registries, on_problem, configured=configured, trust=access.trust, attesters=attesters)


def configured_registries(
    options: Options, *, on_problem: OnProblem, on_warning: OnWarning | None = None, deadline: Deadline | None = None
) -> Registries:
    """The registries that the options name, or the packages of their lock file alone. Raises LockFileError.

    After `deadline` there is no network any more; by default the time is not limited.
    """
    deadline = deadline or Deadline(None)
    attesters = Attesters(cache=BlobCache(options.cache, deadline), trust=partial(_trust_store, options))
    if options.lock is not None:
        from tunehub.registries.locked import open_locked

        return open_locked(options, on_problem, deadline, attesters)
    from tunehub.registries.port import Access

    access = Access(cache=options.cache, trust=_trust_store(options), deadline=deadline)
    access = replace(access, on_warning=on_warning) if on_warning else access
    return open_registries(
        options.registries, offline=options.offline, on_problem=on_problem, access=access, attesters=attesters
    )


def _trust_store(options: Options) -> TrustStore:
    from tunehub.registries.trust_store import trust_store

    return trust_store(options)


def _normalised(address: str) -> str | None:
    from tunehub_registry.stores.open import normalise_address, split_unsigned

    try:
        return normalise_address(split_unsigned(address)[0])
    except RegistryError:
        return None
