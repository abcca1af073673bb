"""The fake MLflow server with the model-registry calls of a push."""

from __future__ import annotations

from typing import Any

from tests.exports.fake_mlflow import Answer, FakeMlflow, _refusal, _run_fields


class FakeRegistry(FakeMlflow):
    """A `FakeMlflow` that creates a version for every request, so tests see duplicates."""

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, dict[str, Any]] = {}

    def _runs_get(self, query: dict[str, str]) -> Answer:
        return 200, {"run": _run_fields(self.runs[query["run_id"]])}

    def _registered_models_get(self, query: dict[str, str]) -> Answer:
        if (model := self.models.get(query["name"])) is None:
            return _refusal(404, "RESOURCE_DOES_NOT_EXIST")
        aliases = [{"alias": alias, "version": version} for alias, version in model["aliases"].items()]
        values = {"name": query["name"], "tags": _pairs(model["tags"])}
        return 200, {"registered_model": values | ({"aliases": aliases} if aliases else {})}

    def _registered_models_create(self, body: dict[str, Any]) -> Answer:
        if body["name"] in self.models:
            return _refusal(400, "RESOURCE_ALREADY_EXISTS")
        self.models[body["name"]] = {"tags": {}, "aliases": {}, "versions": {}, "newest": 0}
        return 200, {"registered_model": {"name": body["name"]}}

    def _registered_models_set_tag(self, body: dict[str, Any]) -> Answer:
        self.models[body["name"]]["tags"][body["key"]] = body["value"]
        return 200, {}

    def _registered_models_alias(self, body: dict[str, Any]) -> Answer:
        model = self.models[body["name"]]
        if "version" not in body:
            model["aliases"].pop(body["alias"], None)
        elif body["version"] not in model["versions"]:
            return _refusal(404, "RESOURCE_DOES_NOT_EXIST")
        else:
            model["aliases"][body["alias"]] = body["version"]
        return 200, {}

    def _model_versions_create(self, body: dict[str, Any]) -> Answer:
        model = self.models[body["name"]]
        model["newest"] += 1
        number = str(model["newest"])
        model["versions"][number] = {
            "name": body["name"],
            "version": number,
            "source": body["source"],
            "run_id": body["run_id"],
            "tags": body["tags"],
        }
        return 200, {"model_version": model["versions"][number]}

    def _model_versions_search(self, query: dict[str, str]) -> Answer:
        name = query["filter"].removeprefix("name='").removesuffix("'")
        found = list(self.models[name]["versions"].values()) if name in self.models else []
        begin = int(query.get("page_token", 0))
        answer: dict[str, Any] = {"model_versions": found[begin : begin + 2]}
        return 200, answer | ({"next_page_token": str(begin + 2)} if begin + 2 < len(found) else {})

    def _model_versions_set_tag(self, body: dict[str, Any]) -> Answer:
        version = self.models[body["name"]]["versions"][body["version"]]
        version["tags"] = [*version["tags"], {"key": body["key"], "value": body["value"]}]
        return 200, {}

    def _model_versions_delete(self, body: dict[str, Any]) -> Answer:
        del self.models[body["name"]]["versions"][body["version"]]
        return 200, {}


def _pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]
