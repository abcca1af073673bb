"""List all packages that an extra of the wheel installs, as a CycloneDX document (SBOM).

It reads versions and licences from the packages installed in this environment, which `constraints.txt` pins.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PathDistribution, metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def document(wheel: Path, extra: str) -> str:
    """Return the document as JSON.

    Args:
        wheel: wheel of the platform.
        extra: extra of the wheel, such as ``"local"``. Its packages are installed here.
    """
    (folder,) = (each for each in zipfile.Path(wheel).iterdir() if each.name.endswith(".dist-info"))
    own = PathDistribution(folder).metadata
    root = _component(own, ComponentType.APPLICATION)
    bom, components = Bom(), {canonicalize_name(own["Name"]): root}
    bom.metadata.component = root
    requirements: dict[Component, set[Component]] = {}
    pending = [(own, root, frozenset({extra}))]
    visited = {(root.name, frozenset({extra}))}
    while pending:
        package, component, extras = pending.pop()
        for requirement in _requirements(package, extras):
            key = canonicalize_name(requirement.name)
            found = own if key == canonicalize_name(own["Name"]) else metadata(key)
            if key not in components:
                components[key] = _component(found, ComponentType.LIBRARY)
                bom.components.add(components[key])
            requirements.setdefault(component, set()).add(components[key])
            visit = (key, frozenset(requirement.extras))
            if visit not in visited:
                visited.add(visit)
                pending.append((found, components[key], visit[1]))
    for component in components.values():
        bom.register_dependency(component, requirements.get(component, set()) - {component})
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _requirements(package: PackageMetadata, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield the direct requirements of a package with these extras, for this Python and machine."""
    environments = [{"extra": extra} for extra in (*extras, "")]
    for line in package.get_all("Requires-Dist") or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate(environment) for environment in environments):
            yield requirement


def _component(package: PackageMetadata, kind: ComponentType) -> Component:
    name, version = canonicalize_name(package["Name"]), package["Version"].partition("+")[0]
    classifiers = (each for each in package.get_all("Classifier") or () if each.startswith("License :: OSI"))
    texts = [each for name in ("License-Expression", "License") for each in package.get_all(name) or ()]
    texts += [each.rpartition(" :: ")[2] for each in classifiers]
    text = next((each for each in texts if each and "\n" not in each), "")
    licences = [LicenseFactory().make_from_string(text)] if text else []
    return Component(
        type=kind,
        name=name,
        version=version,
        licenses=licences,
        purl=PackageURL("pypi", name=name, version=version),
        bom_ref=f"{name}=={version}",
    )
