"""`examples/lora.py`, and the code of docs/fine-tuning.md. Both need `peft` and `transformers`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cerebro import ETLSpec, StepSpec, ragged
from cerebro.client.dry_run import DryRun, dry_run
from cerebro.contract.records import ExperimentRecord, Locators
from cerebro.local import cluster
from cerebro.worker.training.sub_epoch import create
from examples import lora
from tests.waiting import HANG_S

CPU = torch.device("cpu")
HYPERPARAMS: dict[str, Any] = {"rank": 4, "alpha": 8, "lr": 1e-3, "batch_size": 4}
TINY = replace(lora.SMALL, layers=1, width=16, heads=2, texts=24, steps=1)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # from the packages' own code
pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.fixture
def located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Locators of the example with a tiny base model."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return lora.lay_out(tmp_path / "data", TINY)


def tried(located: dict[str, Any], etl: ETLSpec, spec: StepSpec) -> DryRun:
    """Run a batch in this process."""
    record = ExperimentRecord(name="dry", locators=Locators.model_validate(located))
    return dry_run(record, lambda _: b"", etl, spec, HYPERPARAMS, rows=8)


def test_the_exported_adapter_computes_the_same(tmp_path: Path, located: dict[str, Any]) -> None:
    """peft loads the folder; the outputs are equal to the bit."""
    spec, base = lora.LoraTraining(), tmp_path / "data/base"
    spec.misc_dir = str(base)
    (network,) = create(spec, HYPERPARAMS, seed=1, model="m00", device=CPU).modules
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    assert lora.export(network.eval(), base, tmp_path / "adapter", TINY) == 0.0
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in (tmp_path / "adapter").iterdir()
    }


def test_a_dry_run_explains_adapters_without_effect(located: dict[str, Any]) -> None:
    """One sentence names layers that do not exist, or that nothing trains."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2LMHeadModel

    class Wrong(lora.LoraTraining):
        config: Any = None

        def create_models(self, hyperparams: Any) -> list[Any]:
            return [get_peft_model(GPT2LMHeadModel.from_pretrained(self.misc_dir), self.config)]

    for wrong, expected in (
        ({"target_modules": ["attention"]}, "attention.* not found"),
        ({"target_modules": ["c_attn"], "inference_mode": True}, "without a trainable parameter"),
    ):
        spec = Wrong()
        spec.config = LoraConfig(fan_in_fan_out=True, **wrong)
        with pytest.raises(Exception, match=expected):
            tried(located, lora.TextETL(TINY), spec)


def test_the_guides_code_runs(located: dict[str, Any]) -> None:
    """Fine-tune with TRL's collator and a metric of generated text."""
    collators = pytest.importorskip("trl.trainer.sft_trainer")
    import peft
    import transformers

    page = (Path(__file__).parents[2] / "docs/fine-tuning.md").read_text()
    code = next(block for block in re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL) if "Tuning" in block)
    names: dict[str, Any] = {
        **{name: getattr(peft, name) for name in ("LoraConfig", "get_peft_model")},
        "AutoModelForCausalLM": transformers.AutoModelForCausalLM,
        "DataCollatorForLanguageModeling": collators.DataCollatorForLanguageModeling,
        "StepSpec": StepSpec, "torch": torch, "__name__": "guide",
    }  # fmt: skip
    exec(code, names)

    class Dialogues(ETLSpec):
        def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
            prompt, reply = (np.arange(1, 3 + int(row["seed"]) % 3 + more) for more in (0, 1))
            return ragged(prompt), ragged(reply)

    found = tried(located, Dialogues(), names["Tuning"]())
    assert 0 <= found.metrics["test"]["exact"] <= 1


@pytest.mark.slow
@pytest.mark.processes
def test_the_example_trains_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four models train on a cluster; the adapter's folder gives the best model's outputs."""
    home = tmp_path / "home"
    monkeypatch.setenv("CEREBRO_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("sys.argv", ["lora.py", "--small", "--epochs", "1"])
    try:
        cluster.start(home, workers=1, tensorboard=False, timeout_s=HANG_S)
        assert lora.main() == 0
    finally:
        cluster.stop(home)
    assert "its outputs differ by 0.0" in capsys.readouterr().out
