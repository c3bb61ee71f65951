"""Loaded by Python at start-up in every process of the server, as this folder is on ``PYTHONPATH``.

Installs the torchvision hook and runs patches right after the SGLang module they are for. A patch module
holds ``PATCHES = {"sglang.module.name": function(module)}``: ``cpu_patches`` always, and those named in the
environment variable ``SGLANG_KIT_CORRUPTIONS`` (comma-separated). SGLang's files on disk stay as published.
"""

import importlib
import os
import sys
from importlib.machinery import PathFinder

import torchvision_schemas


class _AfterImport:
    """A finder that wraps the loader of every module some patch is for."""

    def __init__(self):
        self.patches = None  # module name to functions, in order; read late, when SGLang itself is imported

    def _read(self):
        planted = [name for name in os.environ.get("SGLANG_KIT_CORRUPTIONS", "").split(",") if name]
        self.patches = {}
        for source in ["cpu_patches", *planted]:
            for name, patch in importlib.import_module(source).PATCHES.items():
                self.patches.setdefault(name, []).append(patch)

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("sglang."):
            return None
        if self.patches is None:
            self._read()
        if name not in self.patches:
            return None
        spec = PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for patch in self.patches[name]:
                patch(module)

        spec.loader.exec_module = exec_module
        return spec


torchvision_schemas.install()
sys.meta_path.insert(0, _AfterImport())
