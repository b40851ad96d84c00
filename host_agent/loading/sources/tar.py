"""Source of WebDataset shards: tar files in which the files of a sample are consecutive and have the same name up to
the first dot (`0001.jpg`, `0001.cls`). A sample is a dictionary keyed by the part after the dot.
"""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from host_agent.loading.sources.files import Files
from host_agent.loading.sources.records import GAP_BYTES, Records
from switchml.errors import ConfigError
from switchml.files import array_header

Member = tuple[str, int, int]
"""(name after the dot, first byte, end) of one file of a sample."""


def webdataset(
    urls: Sequence[str],
    *,
    decode: Callable[[dict[str, Any]], Any] | None = None,
    gap_bytes: int = GAP_BYTES,
    **options: Any,
) -> Records:
    """Samples of tar files, whose headers are read once, when this is called. `decode`: converts a sample for training:
    a dictionary of `__key__` and its files, decoded by name (`decoded`). `options`: those of `Files`. Raises
    ConfigError for a file that is not a tar file, or an empty one."""
    files = Files(urls, **options)
    keys: list[str] = []
    members: list[list[Member]] = []
    file_of: list[int] = []
    for number in range(len(urls)):
        for key, parts in _samples(files, number):
            keys.append(key)
            members.append(parts)
            file_of.append(number)
    if not keys:
        raise ConfigError(f"{urls[0]}: no samples; expected files named KEY.EXTENSION in a tar file")
    starts = np.array([min(start for _, start, _ in parts) for parts in members], np.int64)
    ends = np.array([max(end for *_, end in parts) for parts in members], np.int64)

    def sample_of(data: memoryview, sample: int) -> Any:
        at = int(starts[sample])
        parts = {name: decoded(name, bytes(data[start - at : end - at])) for name, start, end in members[sample]}
        whole = {"__key__": keys[sample], **parts}
        return decode(whole) if decode is not None else whole

    return Records(files, np.array(file_of), starts, ends, sample_of, gap_bytes=gap_bytes)


def _samples(files: Files, number: int) -> list[tuple[str, list[Member]]]:
    """(key, files of the sample) of one tar file, in order."""
    found: list[tuple[str, list[Member]]] = []
    try:
        with files.open(number) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                folder, _, base = member.name.rpartition("/")
                stem, dot, extension = base.partition(".")
                if not member.isfile() or not dot or not stem:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                if not found or found[-1][0] != key:
                    found.append((key, []))
                found[-1][1].append((extension, member.offset_data, member.offset_data + member.size))
    except tarfile.TarError as error:
        raise ConfigError(f"{files.urls[number]}: not an uncompressed tar file ({error})") from None
    return found


def decoded(name: str, data: bytes) -> Any:
    """Decode a file by its extension as WebDataset's basic handlers do: numbers of .cls, .cls2, .index, .inx and .id,
    text of .txt, .text, .transcript, JSON and .npy; anything else stays bytes. Nothing is unpickled."""
    kind = name.rpartition(".")[2].lower()
    if kind in ("cls", "cls2", "index", "inx", "id"):
        return int(data)
    if kind in ("txt", "text", "transcript"):
        return data.decode()
    if kind in ("json", "jsn"):
        return json.loads(data)
    if kind == "npy":
        array_header(io.BytesIO(data), len(data))
        return np.load(io.BytesIO(data), allow_pickle=False)
    return data
