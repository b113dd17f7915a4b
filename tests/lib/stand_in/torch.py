# SPDX-License-Identifier: Apache-2.0
"""The parts of PyTorch that tiers/programs/lmcache_l2.py uses; see the stand-in for LMCache."""
uint8, Size = "uint8", list


def frombuffer(data, dtype):
    return memoryview(data)
