"""lm-evaluation-harness scores one of our folders offline, on a task of its own (extra: eval)."""

import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import fieldlens
from fieldlens.models.hf_export import FieldlensForCausalLM

pytest.importorskip("lm_eval", reason="needs the extra: pip install 'fieldlens[eval]'")
pytestmark = pytest.mark.filterwarnings("default")

TASK = """
task: countdown
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: " {{{{target}}}}"
metric_list: [{{metric: perplexity, aggregation: perplexity, higher_is_better: false}}]
"""


def test_harness_scores_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(switch, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    words = ["<end>", *(f"w{n}" for n in range(50))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "model"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    shape = {"layers": 2, "width": 32, "heads": 4, "vocab_size": len(words), "init_std": 0.2}
    decoder = fieldlens.Decoder(fieldlens.Config(scheme="sandwich", **shape)).eval()
    FieldlensForCausalLM.of(decoder).save_pretrained(folder)

    texts = [("w1 w2 w3 w4", "w5"), ("w9 w8", "w7"), ("w30 w31 w32 w33 w34 w35", "w36")]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(f'{{"context": "{context}", "target": "{target}"}}' for context, target in texts))
    (tmp_path / "countdown.yaml").write_text(TASK.format(data=data))
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "dtype": "float32"},
        tasks=["countdown"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu",
        batch_size=2,
        bootstrap_iters=0,
    )

    losses = []
    for context, target in texts:
        ids = torch.tensor([tokenizer.encode(context).ids])
        losses.append(-torch.log_softmax(decoder(ids)[0, -1], -1)[tokenizer.token_to_id(target)].item())
    expected = math.exp(sum(losses) / len(losses))
    assert results["results"]["countdown"]["perplexity,none"] == pytest.approx(expected, rel=1e-4)
