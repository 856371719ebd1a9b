"""What a newcomer brings: a small model of transformers in a folder with its tokenizer, and a text."""

from pathlib import Path

from families import build
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = "".join(f"Line {number} says that {number} times {number} is {number * number}.\n" for number in range(2000))


def save_model(folder: Path, family: str = "mistral", **changes: int) -> Path:
    """A model with random weights and a byte-level tokenizer of 300 words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT[:5000]], trainer)
    build(family, vocab_size=300, **changes).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    return folder


def save_text(path: Path) -> Path:
    path.write_text(TEXT)
    return path
