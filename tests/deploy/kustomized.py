"""A small, strict reading of kustomization.yaml: what ``kubectl kustomize`` makes of the folders shipped.

No kustomize can be had where the tests run, so that this stands in for it. It knows the few fields that our
files use and refuses every other one, so that nothing is passed over that a real one would act on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

_KNOWN = {"apiVersion", "kind", "namespace", "labels", "resources", "configMapGenerator"}
_CLUSTER_WIDE = {"Namespace"}


def rendered(folder: Path) -> list[dict[str, Any]]:
    """Every object of that folder, as it would be applied. Raises ValueError for what it does not know."""
    said = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    unknown = set(said) - _KNOWN
    if unknown or said["kind"] != "Kustomization" or said["apiVersion"] != "kustomize.config.k8s.io/v1beta1":
        raise ValueError(f"{folder}: {unknown or said['kind']}: not read here")
    objects: list[dict[str, Any]] = []
    for name in said["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            objects += rendered(path)
        else:
            objects += [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]
    for made in said.get("configMapGenerator", ()):
        objects.append(_config_map(folder, made))
    for labels in said.get("labels", ()):
        if set(labels) != {"pairs"}:
            raise ValueError(f"{folder}: labels with {set(labels) - {'pairs'}}: not read here")
        for each in objects:
            each["metadata"].setdefault("labels", {}).update(labels["pairs"])
    for each in objects:
        if "namespace" in said and each["kind"] not in _CLUSTER_WIDE:
            each["metadata"]["namespace"] = said["namespace"]
    _rename(objects)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    if len(set(names)) < len(names):
        raise ValueError(f"{folder}: an object comes twice: {names}")
    return objects


def _config_map(folder: Path, made: dict[str, Any]) -> dict[str, Any]:
    if set(made) != {"name", "files"}:
        raise ValueError(f"{folder}: configMapGenerator with {set(made)}: not read here")
    data = {Path(name).name: (folder / name).read_text(encoding="utf-8") for name in made["files"]}
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{made['name']}-{digest}", "generated_from": made["name"]},
        "data": data,
    }


def _rename(objects: list[dict[str, Any]]) -> None:
    """Let pods name a generated ConfigMap by its name with the digest in it."""
    names = {
        each["metadata"].pop("generated_from"): each["metadata"]["name"]
        for each in objects
        if "generated_from" in each["metadata"]
    }
    for each in objects:
        if each["kind"] in ("Job", "StatefulSet"):
            for volume in each["spec"]["template"]["spec"]["volumes"]:
                if "configMap" in volume:
                    name = volume["configMap"]["name"]
                    volume["configMap"]["name"] = names.get(name, name)
