# SPDX-License-Identifier: Apache-2.0
"""See l2_adapters."""
import types

MemoryFormat = types.SimpleNamespace(BINARY_BUFFER=0)
MemoryObjMetadata = types.SimpleNamespace


class TensorMemoryObj:
    def __init__(self, data, metadata, allocator):
        self.byte_array = data
