"""litdata's StreamingDataset in place of a planned loader: chunks of the same samples on S3, for each rank.

It runs with the settings that are fastest here. Each rank is a node with its own cache: ranks that share a small cache
wait for each other's chunks. There are no worker processes, which don't help on two cores; litdata's thread prefetches
as many chunks as fit in the cache, with obstore, which uses less CPU than boto3.
"""

import importlib.util
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from switchml.errors import ConfigError

NAME = "litdata"
BUCKET = "bucket"


def check_installed() -> None:
    """Raises ConfigError if litdata is missing."""
    if importlib.util.find_spec(NAME) is None:
        raise ConfigError("--against litdata: it is not installed; expected what `pip install litdata` brings")


def folder_of(chunk_samples: int) -> str:
    """Path of the chunks of `chunk_samples` samples in the served folder."""
    return f"{BUCKET}/chunks-of-{chunk_samples}"


def write_chunks(folder: Path, data: np.ndarray, chunk_samples: int) -> None:
    """Write the rows of uint8 `data` (samples, bytes) as chunks of `chunk_samples` below `folder`."""
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(folder / "writing")
    from litdata import optimize  # type: ignore[import-not-found, unused-ignore]  # not an extra of this package

    optimize(
        fn=data.__getitem__,
        inputs=list(range(len(data))),
        output_dir=str(folder / folder_of(chunk_samples)),
        chunk_size=chunk_samples,
        num_workers=1,
        keep_data_ordered=True,
        start_method="fork",
        verbose=False,
    )


def batches(rank: int, plan: dict[str, Any], chunk_samples: int, epochs: int) -> Iterator[Any]:
    """This rank's batches of all epochs, (batch, bytes) uint8 tensors; reading begins with the first batch."""
    credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    ranks = str(plan["ranks"])
    os.environ |= {"WORLD_SIZE": ranks, "GLOBAL_RANK": str(rank), "NNODES": ranks, **credentials}
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader  # type: ignore[import-not-found, unused-ignore]  # optional package

    logging.getLogger(NAME).setLevel(logging.ERROR)  # it warns about caches below 25 GB
    # It has no option for storage without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = StreamingDataset(
        f"s3://{folder_of(chunk_samples)}",
        cache_dir=f"{plan['cache']}/{rank}",
        shuffle=True,
        item_shuffle_window="full",
        drop_last=True,
        max_cache_size=plan["cache_bytes"],
        storage_options={"endpoint_url": plan["storage"]},
    )
    loader = StreamingDataLoader(dataset, batch_size=plan["batch"], num_workers=0, drop_last=True)
    return (batch for _ in range(epochs) for batch in loader)
