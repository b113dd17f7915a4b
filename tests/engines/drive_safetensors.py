# SPDX-License-Identifier: Apache-2.0
"""safetensors and fastsafetensors, with which many engines read and write their files. In these
tests a chunk is a folder with a file for each layer."""

import os

import numpy
import safetensors.torch
import torch
from client import KiB, MiB, Client, content, digest, serve, version

LAYERS = 4
skipped = {}
try:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
except Exception as e:
    skipped["fastsafetensors"] = f"{type(e).__name__}: {e}"[:160]


class Safe(Client):
    name = "safetensors save_file, load_file"

    def files(self, number):
        return [
            os.path.join(self.folder, digest(number).hex(), f"layer{i:02d}.safetensors")
            for i in range(LAYERS)
        ]

    def prepare(self, numbers):
        self.ready = [torch.from_numpy(content(n, self.size)).view(LAYERS, -1) for n in numbers]

    def store(self, numbers):
        values, self.ready = getattr(self, "ready", None), None
        if not values:
            self.prepare(numbers)
            values, self.ready = self.ready, None
        done = []
        for n, value in zip(numbers, values):
            try:
                os.makedirs(os.path.dirname(self.files(n)[0]), exist_ok=True)
                for path, part in zip(self.files(n), value):
                    safetensors.torch.save_file({"kv": part}, path)
                done.append(True)
            except Exception as e:
                print("store", n, e)
                done.append(False)
        return done

    def load(self, numbers):
        return [self.one(n) for n in numbers]

    def one(self, number):
        try:
            return torch.cat(
                [safetensors.torch.load_file(f)["kv"] for f in self.files(number)]
            ).numpy()
        except FileNotFoundError:
            return None


class SafeOpen(Safe):
    name, depths = "safetensors safe_open", (1,)

    def one(self, number):
        parts = []
        try:
            for path in self.files(number):
                with safetensors.safe_open(path, "pt") as f:
                    parts.append(f.get_slice("kv")[:])
        except FileNotFoundError:
            return None
        return torch.cat(parts).numpy()


class Fast(Safe):
    name = "fastsafetensors"

    def one(self, number):
        if not all(map(os.path.exists, self.files(number))):
            return None
        loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
        try:
            # a load does not allow the same key in two files, so load each layer separately
            parts = []
            for path in self.files(number):
                loader.add_filenames({0: [path]})
                buffers = loader.copy_files_to_device()
                parts.append(buffers.get_tensor("kv").clone())
                buffers.close()
                loader.reset()
            return torch.cat(parts).numpy()
        except FileNotFoundError:
            return None
        finally:
            loader.close()


serve(
    [Safe, SafeOpen] + ([] if skipped else [Fast]),
    version("safetensors", "fastsafetensors"),
    skipped,
)
