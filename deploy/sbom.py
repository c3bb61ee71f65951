"""A software bill of materials of an environment, as CycloneDX JSON on stdout: what soak runs on, by version.

Asks pip what is installed and nobody else. Usage: PYTHON deploy/sbom.py, with the Python of the environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import Any


def inspected() -> list[dict[str, Any]]:
    """What pip says is installed. Raises CalledProcessError."""
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "inspect", "--local"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout)["installed"])


def component(package: dict[str, Any]) -> dict[str, Any]:
    """One package."""
    about = package["metadata"]
    name = about["name"].lower().replace("_", "-").replace(".", "-")
    purl = f"pkg:pypi/{name}@{about['version']}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": about["name"],
        "version": about["version"],
        "purl": purl,
    }
    licence = about.get("license_expression") or (about.get("license") or "").split("\n")[0][:100]
    if licence:
        found["licenses"] = [{"license": {"name": licence}}]
    if about.get("summary"):
        found["description"] = about["summary"]
    return found


def bill(packages: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole bill; the same environment gives the same one."""
    components = sorted((component(p) for p in packages), key=lambda c: str(c["purl"]))
    own = next((c for c in components if c["name"] == "soak"), None)
    others = [c for c in components if c is not own]
    text = json.dumps(others, sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}",
        "version": 1,
        "metadata": {} if own is None else {"component": {**own, "type": "application"}},
        "components": others,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bill(inspected()), indent=2) + "\n")
