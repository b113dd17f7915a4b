# SPDX-License-Identifier: Apache-2.0
"""See l2_adapters."""


class Config(dict):
    from_dict = classmethod(lambda cls, d: cls(d))


def get_l2_adapter_config_class(name):
    if name not in ("plain", "keeps"):
        raise ValueError(f"unknown L2 adapter type {name!r}")
    return Config
