"""Where TUF metadata lies in a registry, and what it is for. Formats: TUF specification 1.0, consistent snapshots.

A package name is a TUF target path; the target is the name's shard, signed by the publisher's role, to which the name
is delegated by a pattern. Shards and packages are fetched by their SHA-256 from where an unsigned registry has them.
`timestamp.json` is the only file that changes: replacing it commits.
"""

from __future__ import annotations

LOG = "log"  # the folder of the log: tiles, entries, and what witnesses cosigned
METADATA = "metadata"
TIMESTAMP_PATH = f"{METADATA}/timestamp.json"
MAX_ROOT_BYTES = 512_000
MAX_TIMESTAMP_BYTES = 2_000_000  # with what rides in that of a large registry: see `attached`
MAX_SNAPSHOT_BYTES = 8_000_000
MAX_TARGETS_BYTES = 8_000_000
CATALOGUE_FIELD = "x-tunehub-catalogue"  # in the signed part of the snapshot, and of bins: see `catalogue`
MAX_TIMESTAMP_DAYS = 30  # a client takes one as ended so long after it first saw it, whatever it says of itself
# In a publisher's signed part: made without the online key, and waits for the signing job. Of each name that was
# published so, the target is in the field `custom`, since the job reads no packages.
PROPOSED_FIELD = "x-tunehub-proposed"
PROPOSED_TARGET = "tunehub-target"
REVIEWED_FIELD = "x-tunehub-reviewed"  # in a delegation: its publisher publishes what a review has verified
LOG_FIELD = "x-tunehub-log"  # in the timestamp's signed part: the head of the log, a signed note
# In the timestamp's signed part: the number of the root that its writer knew. A publisher with an older one looks for
# newer ones before it signs, so that nobody goes on with a key that was replaced.
ROOT_FIELD = "x-tunehub-root"


def versioned_path(role: str, version: int) -> str:
    """Where a version of a role's metadata lies; it is immutable. Not for the timestamp, which has no versions."""
    return f"{METADATA}/{version}.{role}.json"
