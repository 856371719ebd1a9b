"""A loaded model that computes targets of the explorer on request, and keeps what it computed."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.core.memory import free_memory, out_of_memory
from fieldlens.data.tokenizer import Coder, find_bos, token_texts
from fieldlens.extension.load import with_method
from fieldlens.models.cost import SHARE, backward
from fieldlens.models.loading import Model, load
from fieldlens.models.origin import find_model
from fieldlens.receptive.explorer.data import encode, marks
from fieldlens.receptive.explorer.jobs import Step
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.input_gradients import EmbeddingHook, Target, embedding_hook

TEXTS, TARGETS = 32, 512
"""Number of texts and of targets that are kept."""

COLOURS = ("#0072B2", "#D55E00")
"""Colours of the model, and of the model with an extension method."""


@dataclass(frozen=True)
class Text:
    """A tokenized text; its id is a hash of its tokens."""

    id: str
    ids_T: np.ndarray
    pieces: list[str]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "pieces": self.pieces, "note": self.note}


@dataclass(frozen=True)
class Query:
    """A target that the page asks for."""

    text: str
    at: int
    model: int = 0
    layer: int = 0
    objective: Target = "log-likelihood"

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Query":
        """A query from the body of a request, its types checked."""
        query = cls(**{key: body[key] for key in ("text", "at", "model", "layer", "objective") if key in body})
        numbers = (query.at, query.model, query.layer)
        if not isinstance(query.text, str) or any(type(number) is not int for number in numbers):
            raise BadInput("text must be a string; at, model and layer must be integers")
        if query.objective not in get_args(Target):
            raise BadInput(f"objective must be {' or '.join(get_args(Target))}")
        return query


class Session:
    """The model, the texts and the targets of one page. All methods are called from one thread."""

    def __init__(self, name: str, machine: Machine, tokens: int, method: str | None, train_length: int | None) -> None:
        self.name, self.machine, self.tokens = name, machine, tokens
        self.method, self.train_length = method, train_length
        self.texts: OrderedDict[str, Text] = OrderedDict()
        self.targets: OrderedDict[Query, dict[str, Any]] = OrderedDict()
        self.first: str | None = None
        """The id of the text to begin with."""
        self.notes: list[str] = []
        """Lines for the terminal."""
        self.attachment, self.attached = ExitStack(), 0
        self.hooks: dict[tuple[int, bool], EmbeddingHook] = {}

    def load(self, step: Step) -> dict[str, Any]:
        """Load the tokenizer and the model, and check that gradients can be computed."""
        step("reading the tokenizer", None)
        origin = find_model(self.name)
        if origin.diverged:
            raise BadInput(f"{origin.text} diverged during training: there is no model to explore")
        self.coder = Coder(origin.tokenizer)
        self.bos = find_bos(origin.tokenizer).id
        step("reading the weights", None)
        device, dtype = self.machine.start()
        dtype = dtype if dtype.itemsize >= 4 else torch.float32
        self.models = [load(origin, device, dtype, self.train_length, hash_weights=False, on_note=self.notes.append)]
        step("checking the model", None)
        self.layers = len(self._hook(0, False).layer_modules)
        if self.method is not None:
            with ExitStack() as stack:  # refuses a method that does not suit the model
                self.models.append(with_method(self.models[0], self.method, stack, self.bos))
        limit = self.models[0].adapter.limit
        if limit is not None:
            self.tokens = min(self.tokens, limit - (self.bos is not None))
        return self.about()

    def about(self) -> dict[str, Any]:
        """What the page must know of the model."""
        models = [
            {"name": model.about["name"], "colour": colour, "layers": self.layers}
            for model, colour in zip(self.models, COLOURS, strict=False)
        ]
        return {"models": models, "objectives": list(get_args(Target)), "text": self.first}

    def read(self, content: str, cut: bool = False) -> Text:
        """Tokenize a text; one that is too long is refused, or cut."""
        if not content.strip():
            raise BadInput("the text is empty")
        if any("\ud800" <= character <= "\udfff" for character in content):
            raise BadInput("the text contains an unpaired surrogate, which is no character: paste it again")
        ids_T = self.coder.whole(content)[0]
        note = ""
        if len(ids_T) > self.tokens:
            if not cut:
                raise BadInput(f"the text has {len(ids_T):,} tokens, at most {self.tokens:,} are allowed")
            note = f"The first {self.tokens:,} of {len(ids_T):,} tokens are shown; --length allows more."
            ids_T = ids_T[: self.tokens]
        if len(ids_T) < 3:
            raise BadInput(f"the text has {len(ids_T)} tokens, at least 3 are needed")
        ids_T = ids_T.astype(np.int64)
        key = hashlib.sha256(ids_T.tobytes()).hexdigest()[:16]
        if key not in self.texts:
            self.texts[key] = Text(key, ids_T, token_texts(self.coder.tokenizer, ids_T.tolist()), note)
        self.texts.move_to_end(key)
        while len(self.texts) > TEXTS:
            self.texts.popitem(last=False)
        return self.texts[key]

    def text(self, key: str) -> Text:
        if key not in self.texts:
            raise BadInput("this text is not known to the server any more: choose one again")
        return self.texts[key]

    def target(self, query: Query, step: Step) -> dict[str, Any]:
        """Shares and marks of one target."""
        row = self._row(query)
        if query in self.targets:
            self.targets.move_to_end(query)
            return self.targets[query]
        step("computing the gradient", 0.0)
        norms_T, reason = self._norms(query, row, step)
        field = ReceptiveField(norms_T[None], bos=self.bos is not None, reason=reason)
        if field.status:
            raise BadInput(f"this target has no receptive field: {field.status}")
        shares_T = field.shares()
        extra = len(shares_T) - query.at
        result: dict[str, Any] = {
            "start": 0,
            "range": None,
            "shares": encode(shares_T[extra:].astype(np.float32)),
            "marks": marks(shares_T, query.at),
            "bos": float(shares_T[:extra].sum()) if extra else None,
        }
        self.targets[query] = result
        while len(self.targets) > TARGETS:
            self.targets.popitem(last=False)
        return result

    def losses(self, query: Query, sizes: Sequence[int], step: Step) -> dict[str, Any]:
        """The loss of a target with its context cut to each number of tokens, and with one token and all of them."""
        row = self._row(query)
        for tokens in sizes:
            if not 1 <= tokens <= query.at:
                raise BadInput(f"tokens must be between 1 and {query.at}, got {tokens}")
        losses = []
        for tokens in sorted({1, *sizes, query.at}):
            step("computing the loss", None)
            losses.append([tokens, self._loss(query, row, tokens)])
        return {"losses": losses}

    def _row(self, query: Query) -> Tensor:
        """BOS, context and target of a query, (1, T + 1); raises BadInput if there is no such target."""
        text = self.text(query.text)
        if not 1 <= query.at < len(text.ids_T):
            raise BadInput(f"at must be between 1 and {len(text.ids_T) - 1}, got {query.at}")
        if not 0 <= query.model < len(self.models) or not 0 <= query.layer <= self.layers:
            raise BadInput(f"there is no model {query.model} with a layer {query.layer}")
        ids_T = torch.from_numpy(text.ids_T[: query.at + 1])
        bos_T = torch.tensor([] if self.bos is None else [self.bos], dtype=torch.long)
        return torch.cat([bos_T, ids_T])[None]

    def _loss(self, query: Query, row: Tensor, tokens: int) -> float:
        extra = row.shape[1] - 1 - query.at
        cut = torch.cat([row[:, :extra], row[:, -tokens - 1 :]], 1)
        return float(self._model(query.model).adapter.losses(cut)[0, 0])

    def _norms(self, query: Query, row: Tensor, step: Step) -> tuple[np.ndarray, str]:
        """Gradient norms of the context, and why they are undefined if they are."""
        adapter, tokens = self._model(query.model).adapter, row.shape[1] - 1
        recompute = backward(adapter, tokens, checkpointing=False).bytes > SHARE * free_memory(adapter.device)
        hook = self._hook(query.model, recompute)
        hook.reason = ""
        try:
            with watched(hook, lambda done: step("computing the gradient", done)):
                if query.layer:
                    return hook.layers(row, None, [query.layer - 1])[0, 0].numpy(), hook.reason
                return hook.norms(row, query.objective)[0].numpy(), hook.reason
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise BadInput(f"not enough memory for a context of {tokens:,} tokens: choose an earlier word") from error

    def _model(self, number: int) -> Model:
        """A model, ready to run: the method of the second one is attached only while it is used."""
        if number == 1 and self.attached != 1:
            self.models[1] = with_method(self.models[0], self.method or "", self.attachment, self.bos)
        elif number == 0 and self.attached == 1:
            self.attachment.close()
        self.attached = number
        return self.models[number]

    def _hook(self, number: int, recompute: bool) -> EmbeddingHook:
        adapter = self._model(number).adapter
        key = (number, recompute)
        if key not in self.hooks or self.hooks[key].adapter is not adapter:
            self.hooks[key] = embedding_hook(adapter, recompute)
        return self.hooks[key]


@contextmanager
def watched(hook: EmbeddingHook, report: Any) -> Iterator[None]:
    """Context that reports, from 0 to 1, how many layers a gradient has passed, forward and backward.

    An exception that `report` raises ends the computation.
    """
    total, passed = 2 * len(hook.layer_modules), 0

    def advance(gradient: Tensor | None = None) -> None:
        nonlocal passed
        passed = min(passed + 1, total)
        report(passed / total)

    def forward(module: Any, arguments: Any, output: Any) -> None:
        advance()
        states = output[0] if isinstance(output, tuple) else output
        if isinstance(states, Tensor) and states.requires_grad:
            states.register_hook(advance)

    with ExitStack() as stack:
        for layer in hook.layer_modules:
            stack.callback(layer.register_forward_hook(forward).remove)
        yield
