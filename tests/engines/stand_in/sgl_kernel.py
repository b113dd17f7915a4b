# SPDX-License-Identifier: Apache-2.0
"""Stands in for SGLang's compiled kernels, which have no package for the CPU, so that a whole
SGLang starts without a GPU. SGLang imports it under this name, and its layers then use torch. Only
one kernel is needed: it copies between SGLang's device pool and its host pool, and is implemented
here. A call of any other kernel fails."""

import builtins, importlib.abc, importlib.machinery, sys, types
import torch

__version__ = "9.9.9"
__path__ = []


class Missing:
    def __init__(self, name):
        self.name = name

    def __call__(self, *_, **__):
        raise NotImplementedError(f"sgl_kernel.{self.name} is not on the CPU")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.name}.{name}")

    def __or__(self, _):  # in annotations
        return self

    __ror__ = __or__


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes submodules, in which all kernels are missing too."""

    def find_spec(self, name, path, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__, module.__path__ = __getattr__, []
        return module

    def exec_module(self, _):
        pass


class Runtime:
    """Stands in for CUDA's runtime, which SGLang calls to pin host memory. The calls do nothing."""

    def cudaHostRegister(self, *_):
        return 0

    cudaHostUnregister = cudaHostRegister


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size):
    for src, dst in zip(src_layers, dst_layers):
        dst[dst_indices.long()] = src[src_indices.long()]


sys.meta_path.append(Finder())
torch.cuda.cudart = Runtime
for call in ("synchronize", "wait_event", "wait_stream"):
    if not hasattr(torch.cpu.Stream, call):
        setattr(torch.cpu.Stream, call, lambda *_: None)
# SGLang imports this function only if a GPU exists
builtins.transfer_kv_direct = transfer_kv_direct
