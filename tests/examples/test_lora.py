"""`examples/lora.py`, and the code of docs/fine-tuning.md.

Tests import `peft` and `transformers`: these take seconds, and each process of a test run imports this file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro import ETLSpec, Experiment, StepSpec
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


@pytest.fixture
def located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Locators of the example with a tiny base model."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return lora.lay_out(tmp_path / "data", TINY)


def blocks() -> list[str]:
    """Return the Python of the guide; the last block saves the best model of a fit."""
    page = (Path(__file__).parents[2] / "docs/fine-tuning.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


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


def test_the_guides_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tune with a tokenizer, TRL's collator and a metric of generated text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    lora.write_base(Path("my-gpt2"), TINY)
    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, "one": 1, "two": 2, "three": 3}, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained("my-gpt2")
    for split in ("train", "valid"):
        rows = [f"{n},one two,{'two ' * (n % 3)}three" for n in range(8)]
        Path(f"{split}.csv").write_text("\n".join(["id,prompt,reply", *rows]) + "\n")
    names: dict[str, Any] = {"__name__": "guide"}
    *code, _ = blocks()
    exec("\n".join(code), names)
    found = tried(names["locators"], names["Dialogues"](), names["Tuning"]())
    assert 0 <= found.metrics["test"]["exact"] <= 1


@pytest.mark.slow
@pytest.mark.processes
def test_the_example_trains_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two models train on a cluster; the adapter's folder gives the best model's outputs. The guide saves it, too."""
    home = tmp_path / "home"
    monkeypatch.setenv("CEREBRO_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("sys.argv", ["lora.py", "--small", "--epochs", "1"])
    monkeypatch.setitem(lora.SPACE, "rank", [4])
    monkeypatch.setattr(lora, "SMALL", replace(lora.SMALL, texts=32, steps=2))
    monkeypatch.chdir(tmp_path)
    try:
        cluster.start(home, workers=1, tensorboard=False, timeout_s=HANG_S)
        assert lora.main() == 0
        exec(blocks()[-1], {"result": Experiment.attach("lora").result()})
    finally:
        cluster.stop(home)
    assert "its outputs differ by 0.0" in capsys.readouterr().out
    assert (tmp_path / "adapter/adapter_model.safetensors").exists()
