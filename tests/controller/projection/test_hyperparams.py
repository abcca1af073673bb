"""TensorBoard's HParams plugin shows hyperparameters and finished models."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS, STATUS_UNKNOWN

from cerebro.contract.records import Hyperparameters
from tests.controller.projection.written import (
    LogStore,
    Once,
    file_of,
    sessions,
    volumes,
)
from tests.state.stories import Story


def test_hyperparameters_of_any_type_are_written(tmp_path: Path) -> None:
    """Any JSON value."""
    story = Story()
    given: Hyperparameters = {"batch_size": 1, "lr": 0.5, "name": "<script>"}
    given |= {"is_wide": True, "layers": [8, 4], "none": None}
    story.fit(models=1, hyperparams={"m00": given})
    story.train(1, 0)
    Once(LogStore(story.log), tmp_path).write()
    ((_, start),) = sessions(file_of(tmp_path))
    kinds = {name: value.WhichOneof("kind") for name, value in start.hparams.items()}
    assert kinds == {
        "batch_size": "number_value", "lr": "number_value", "name": "string_value",
        "is_wide": "bool_value", "layers": "string_value", "none": "string_value",
    }  # fmt: skip
    assert start.hparams["layers"].string_value == "[8, 4]"


def test_only_a_model_that_trained_all_epochs_is_a_success(written: Path) -> None:
    """TensorBoard keeps the first end it reads, so a model that may continue has no end."""
    assert [what for what, _ in sessions(file_of(written))] == ["session_start_info", "session_end_info"]
    assert sessions(file_of(written))[-1][1].status == STATUS_SUCCESS
    assert [what for what, _ in sessions(file_of(written, "m01"))] == ["session_start_info"]


def test_tensorboard_shows_models_with_hyperparameters_and_metrics(written: Path) -> None:
    """The plugin returns one row per model, with the newest value of each metric."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(volumes(written).tensorboard))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(written))
    context = backend_context.Context(TBContext(data_provider=provider, logdir=str(written)))
    tags = ("epoch/valid/loss", "sub_epoch/train/loss")
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=10,
        allowed_statuses=[STATUS_UNKNOWN, STATUS_SUCCESS],
        col_params=[api_pb2.ColParams(metric=api_pb2.MetricName(tag=tag)) for tag in tags],
    )
    found = list_session_groups.Handler(RequestContext(), context, "", request).run().session_groups
    rows = {
        group.name: (
            round(group.hparams["lr"].number_value, 3),
            {one.name.tag: round(one.value, 3) for one in group.metric_values if one.name.tag in tags},
            group.sessions[0].status,
        )
        for group in found
    }
    assert rows == {
        "one/fit-1/m00": (0.1, {"epoch/valid/loss": 2.5, "sub_epoch/train/loss": 1.0}, STATUS_SUCCESS),
        "one/fit-1/m01": (0.2, {"sub_epoch/train/loss": 9.0}, STATUS_UNKNOWN),
    }
