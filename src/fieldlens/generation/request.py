"""What to generate: the options of `fieldlens generate`."""

from dataclasses import dataclass, field
from pathlib import Path

from fieldlens.core.errors import BadInput
from fieldlens.data.documents import File
from fieldlens.extension.load import resolve_method
from fieldlens.generation.sampling import Sampling


@dataclass(frozen=True)
class GenerateRequest:
    """Options of `fieldlens generate`."""

    prompt: str | None = None
    file: Path | None = None
    tokens: int = 200
    mode: str | None = None
    window: int | None = None
    method: str | None = None
    """Spec of an extension method."""
    sinks: int | None = None
    """Number of first keys to keep besides those in the window: short for the method streaming."""
    sampling: Sampling = field(default_factory=Sampling)
    past_end: bool = False
    """Continue after the end-of-text token."""
    train_length: int | None = None

    def __post_init__(self) -> None:
        resolve_method(self)
        if self.tokens < 1:
            raise BadInput(f"tokens must be at least 1, got {self.tokens}")
        if (self.prompt is None) == (self.file is None):
            raise BadInput("give either --prompt TEXT or --prompt-file FILE")

    def text(self) -> str:
        """Return the prompt, unchanged."""
        if self.file is not None:
            if not self.file.exists() or self.file.is_dir():
                raise BadInput(f"{self.file} is not a file: --prompt-file takes a text file")
            (text,) = File("prompt", self.file, None).documents()
        else:
            text = self.prompt or ""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"the prompt is not valid UTF-8 at character {error.start}") from None
        if not text:
            raise BadInput("the prompt is empty: at least one character is required")
        return text
