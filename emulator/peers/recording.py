"""Recorded runs: the inputs and outputs of one rank in every collective. `rank3.bin` holds the tensors' bytes in
sequence, `rank3.jsonl` a line for each collective with their offsets.

In a replay, absent ranks contribute what they did in the recording: a sum is the recorded sum, plus the real ranks'
inputs now, minus their recorded inputs. An unchanged run therefore gets the recorded sums bit for bit.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from switchml.errors import ConfigError

Key = tuple[tuple[int, ...], int]
"""Ranks of the group, and number of the collective in it."""


class Writer:
    """Records one rank's run into `folder`."""

    def __init__(self, folder: Path, rank: int):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._bytes = (folder / f"rank{rank}.bin").open("wb")
            self._lines = (folder / f"rank{rank}.jsonl").open("w")
        except OSError as error:
            raise ConfigError(f"can't record into {folder}: {error.strerror}") from None
        self._at = 0
        self._lock = threading.Lock()

    def add(self, key: Key, name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Append the tensors of one collective, before and after it."""
        line = {"group": list(key[0]), "number": key[1], "name": name}
        with self._lock:
            for part, tensors in ("given", inputs), ("got", outputs):
                line[part] = [self._put(tensor) for tensor in tensors]
            self._lines.write(json.dumps(line) + "\n")

    def _put(self, tensor: torch.Tensor) -> dict[str, Any]:
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        entry = {"at": self._at, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        self._at += self._bytes.write(raw)
        return entry

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        self._bytes.close()
        self._lines.close()


class Reader:
    """Reads the recorded run of `rank` in `folder`. Raises ConfigError if there is none."""

    def __init__(self, folder: Path, rank: int):
        self._folder = folder
        path = folder / f"rank{rank}.jsonl"
        try:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            data = path.with_suffix(".bin")
            self._bytes = np.memmap(data, np.uint8, "r") if data.stat().st_size else np.empty(0, np.uint8)
            self._entries = {(tuple(line["group"]), line["number"]): line for line in lines}
        except OSError as error:
            raise ConfigError(
                f"no recorded run of rank {rank} in {folder} ({error.strerror}); record one with all ranks real"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a recorded run: {error}") from None

    def find(
        self, key: Key, name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the recorded inputs and outputs. Raises ConfigError if tensors differ from the recorded ones, or the
        recording has ended."""
        entry = self._entries.get(key)
        where = f"{name} number {key[1]} of ranks {_ranks(key[0])}"
        if entry is None:
            have = sum(group == key[0] for group, _ in self._entries)
            raise ConfigError(
                f"{where}: the run recorded in {self._folder} has {have} collectives of that group; record a longer one"
            )
        if entry["name"] != name or not all(
            len(entry[part]) == len(now)
            and all(_is_alike(one, tensor) for one, tensor in zip(entry[part], now, strict=True))
            for part, now in (("given", inputs), ("got", outputs))
        ):
            raise ConfigError(
                f"{where}: the run recorded in {self._folder} did a {entry['name']} of "
                f"{[(one['dtype'], one['shape']) for one in entry['given']]} there, this one of "
                f"{[(str(one.dtype).removeprefix('torch.'), list(one.shape)) for one in inputs]}; record it again"
            )
        return [self._get(one) for one in entry["given"]], [self._get(one) for one in entry["got"]]

    def _get(self, entry: dict[str, Any]) -> torch.Tensor:
        dtype = getattr(torch, entry["dtype"])
        count = int(np.prod(entry["shape"])) * dtype.itemsize
        raw = self._bytes[entry["at"] : entry["at"] + count]
        if len(raw) < count:
            raise ConfigError(f"the run recorded in {self._folder} is cut off; record it again")
        return torch.from_numpy(np.array(raw)).view(dtype).reshape(entry["shape"])


def _is_alike(entry: dict[str, Any], tensor: torch.Tensor) -> bool:
    return (entry["dtype"], entry["shape"]) == (str(tensor.dtype).removeprefix("torch."), list(tensor.shape))


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]}, {ranks[1]}, … {ranks[-1]}"
