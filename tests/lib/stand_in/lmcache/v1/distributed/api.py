# SPDX-License-Identifier: Apache-2.0
"""See l2_adapters."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str
    kv_rank: int
