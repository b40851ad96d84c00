"""Reading from torch's store, over which a group's rendezvous takes place. Everybody who can connect to its port can
read and write all of it, so values are untrusted: they must be short and of the expected form, and are never unpickled.
If the ranks share a secret, all that they write is sealed with it, including Gloo's addresses.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import DistNetworkError, PrefixStore, Store, TCPStore

from switchml.control.membership import name_ranks
from switchml.errors import JoinError

log = logging.getLogger("host_agent")

LONGEST = 1 << 16
"""Maximum bytes of a value that a rank reads; the longest one has a list of aggregators. Gloo's may have torch's limit
of 8 MB."""
POLL_S = 0.005
"""Interval in seconds at which a rank polls the store."""
NOTICE_S = 2.0
"""Seconds after which rank 0 logs the ranks that it waits for; doubled after each message."""
ADVICE = "somebody else may write to this store (docs/security.md)"
_WORD = re.compile("[0-9a-f]{16}")
_REFUSED = "refused "
"""Prefix of a rank's word after it has refused rank 0's answer to it."""
_GIVE = "give all ranks the same SWITCHML_SECRET, or a file with it (SWITCHML_SECRET_FILE)"
_SALT = secrets.token_hex(8)
"""Salt of all parts created by this process."""


@contextlib.contextmanager
def asking(what: str) -> Iterator[None]:
    """Convert torch's errors in this block to JoinErrors that begin with `what`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # the latter from invalid Gloo addresses
        raise JoinError(f"{what}: {str(error).partition(chr(10))[0][:500]}") from error


def read(store: Store, key: str) -> bytes:
    """Read the value of a key. Raises JoinError if it is too long to be genuine."""
    value = bytes(store.get(key))
    if len(value) > LONGEST:
        raise JoinError(f"{key!r} in torch's store has {len(value):,} bytes; expected {LONGEST:,} at most: {ADVICE}")
    return value


def read_fields(store: Store, key: str) -> dict[str, str]:
    """Read a JSON object of strings. Raises JoinError for anything else."""
    text = read(store, key).decode(errors="replace")
    try:
        fields = json.loads(text)
        if isinstance(fields, dict) and all(isinstance(value, str) for value in fields.values()):
            json.dumps(fields, ensure_ascii=False).encode()  # JSON may contain unpaired surrogates
            return fields
    except (ValueError, RecursionError):
        pass
    raise JoinError(f"{key!r} in torch's store is {text[:40]!r}…; expected a JSON object of texts: {ADVICE}")


class Part(Store):
    """A group's part of torch's store, also used by Gloo. With a `key`, values written by `set` are sealed
    (HMAC-SHA-256), and `get` raises JoinError for values that were not written with that key under this name. Counters
    are not sealed. C++ does not keep the object alive; its creator must."""

    def __init__(self, store: Store, name: str, key: bytes = b"") -> None:
        super().__init__()
        self.underlying_store, self._name, self._key = store, name, key

    def under(self, prefix: str) -> Part:
        """The part with keys of this prefix."""
        return Part(self.underlying_store, f"{self._name}/{prefix}", self._key)

    def unsealed(self) -> PrefixStore:
        """The same keys without seals, for callers that don't keep a `Part` alive."""
        return PrefixStore(self._name, self.underlying_store)

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.underlying_store.set(self._at(key), self._mac(key, data) + data)  # type: ignore[arg-type]  # bytes, too

    def get(self, key: str) -> bytes:
        data = bytes(self.underlying_store.get(self._at(key)))
        size = len(self._mac("", b""))
        if not hmac.compare_digest(self._mac(key, data[size:]), data[:size]):
            raise JoinError(f"{key!r} in torch's store is not sealed with this rank's secret: {ADVICE}")
        return data[size:]

    def add(self, key: str, value: int) -> int:
        return self.underlying_store.add(self._at(key), value)

    def check(self, keys: list[str]) -> bool:
        return self.underlying_store.check([self._at(key) for key in keys])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        names = [self._at(key) for key in keys]
        self.underlying_store.wait(names, *([] if timeout is None else [timeout]))

    def _mac(self, key: str, data: bytes) -> bytes:
        return _mac(self._key, self._at(key), data) if self._key else b""

    def _at(self, key: str) -> str:
        return f"{self._name}/{key}"  # as in PrefixStore


def own_part(store: Store, rank: int, size: int, timeout: timedelta, secret: str = "") -> Part:
    """A part of `store` that no earlier group of this name has written to, sealed with `secret` if the ranks have one.

    torchrun keeps one store for all rounds of `--max-restarts`, and earlier rounds may have ended at any point, with
    another number of ranks.

    1. Each rank except 0 announces a random word. Existing values are from an earlier round.
    2. Rank 0 sends the new part's name in answer to each word that it reads, including old ones, until the rank that
       wrote the word confirms within the part. Nobody waits for answers to old words. With a secret, the name is sealed
       together with the word, so that earlier answers can't be replayed.

    Anybody who reads a sealed value can try secrets on it, at the speed of scrypt. Raises JoinError after `timeout`,
    for values that no rank writes, and if ranks have different secrets; DistNetworkError if the store ends.
    """
    try:
        return _announce(store, rank, timeout, secret) if rank else _gather(store, size, timeout, secret)
    except DistNetworkError:  # torch_patches.py reconnects
        raise
    except RuntimeError as error:
        raise JoinError(f"no rendezvous in torch's store within {timeout.total_seconds():g} s: {error}") from error


def _announce(store: Store, rank: int, timeout: timedelta, secret: str) -> Part:
    word = secrets.token_hex(8)
    store.set(f"word/{rank}", word)
    store.wait([f"part/{word}"], timeout)
    try:
        part = _opened(store, word, secret)
    except JoinError:
        store.set(f"word/{rank}", f"{_REFUSED}{word}")
        raise
    part.set(f"here/{rank}", "")
    return part


def _opened(store: Store, word: str, secret: str) -> Part:
    """The part that rank 0 names in its answer to `word`. Raises JoinError."""
    text = read(store, f"part/{word}").decode("ascii", "replace")
    name, *seal = text.split() or [""]
    if not all(map(_WORD.fullmatch, (name, *seal[:1]))) or len(seal) not in (0, 2):
        raise JoinError(f"'part/{word}' in torch's store is {text[:40]!r}; expected rank 0's answer: {ADVICE}")
    if bool(seal) != bool(secret):
        raise JoinError(f"{'rank 0' if seal else 'this rank'} has a secret, the other has none: {_GIVE} ({ADVICE})")
    if not seal:
        return Part(store, name)
    key = _key(secret, seal[0])
    if not hmac.compare_digest(_mac(key, word, name.encode()).hex().encode(), seal[1].encode()):
        raise JoinError(f"rank 0 has another secret: {_GIVE} ({ADVICE})")
    return Part(store, name, key)


def _gather(store: Store, size: int, timeout: timedelta, secret: str) -> Part:
    name, answered = secrets.token_hex(8), set()
    key = _key(secret, _SALT) if secret else b""
    part = Part(store, name, key)
    begun = time.monotonic()
    missing, deadline, notice = list(range(1, size)), begun + timeout.total_seconds(), begun + NOTICE_S
    while missing := [other for other in missing if not part.check([f"here/{other}"])]:
        for other in missing:
            if not store.check([f"word/{other}"]):
                continue
            text = read(store, f"word/{other}").decode("ascii", "replace")
            word = text.removeprefix(_REFUSED)
            if not _WORD.fullmatch(word):
                raise JoinError(f"'word/{other}' in torch's store is {text[:40]!r}; expected a rank's word: {ADVICE}")
            if word == text:
                seal = f" {_SALT} {_mac(key, word, name.encode()).hex()}" if key else ""
                store.set(f"part/{word}", f"{name}{seal}")
                answered.add(word)
            elif word in answered:
                raise JoinError(f"rank {other} has another secret than this rank, or none: {_GIVE}")
        if (now := time.monotonic()) >= notice:
            notice = begun + 2 * (now - begun)
            log.warning(f"rank 0 has waited {now - begun:.0f} s for {name_ranks(missing)} to join the process group")
        if now >= deadline:
            raise JoinError(f"{name_ranks(missing)} did not join within {timeout.total_seconds():g} s")
        time.sleep(POLL_S)
    return part


def host_of(store: Store) -> str:
    """Host of this store's TCP server; "" for a store in a file or in this process."""
    while isinstance(store, (Part, PrefixStore)):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""


def _mac(key: bytes, where: str, data: bytes) -> bytes:
    return hmac.digest(key, where.encode() + b"\0" + data, "sha256")


@functools.lru_cache(maxsize=1024)
def _key(secret: str, salt: str) -> bytes:
    """Derive a key, which takes 16 MB and some 50 ms, so that a human-chosen secret can't be guessed from sealed
    values."""
    return hashlib.scrypt(os.fsencode(secret), salt=salt.encode(), n=1 << 14, r=8, p=1, dklen=32)
