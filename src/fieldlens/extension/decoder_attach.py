"""Attaches a method to a decoder of this library, through the `extension` of the decoder."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.extension.attention import BiasAt, RegionInputs, Visibility, attend
from fieldlens.extension.base import ExtensionMethod, Region
from fieldlens.extension.rope import DecoderFrequencies
from fieldlens.kernels.attention import bias_table
from fieldlens.kernels.rotary import RotaryTable, accumulation_dtype, apply_rotary
from fieldlens.models.decoder import Attention, Decoder
from fieldlens.schemes.base import Scheme


class DecoderAttachment:
    """Regions of a method, with the rotation or biases of each layer's scheme; other frequencies if it has any."""

    def __init__(self, decoder: Decoder, name: str, regions: tuple[Region, ...]) -> None:
        self.decoder, self.name, self.regions = decoder, name, regions
        self.frequencies: dict[Scheme, DecoderFrequencies] = {}
        if decoder.scheme.embedding(self._positions(2)) is not None:
            raise BadInput(f"{name} adds positions to its embeddings: use the methods crop or window")
        beyond = [scheme.spec for scheme in decoder.scheme.distinct_schemes if not scheme.tables_only]
        if beyond:
            raise BadInput(f"{name} adds more than rotations and biases ({beyond[0]}): use the methods crop or window")

    @classmethod
    def of(cls, decoder: Decoder, name: str, method: ExtensionMethod) -> "DecoderAttachment":
        """The attachment of a method; BadInput if the schemes of the layers do not allow it."""
        attachment = cls(decoder, name, method.regions())
        schemes = decoder.scheme.distinct_schemes
        biased = any(scheme.bias(attachment._positions(2)) is not None for scheme in schemes)
        if method.needs_rotary and (biased or not attachment.rotates):
            lack = "biases" if biased else "no rotary positions"
            raise BadInput(
                f"{method.name} needs rotary positions, but {name} has {lack}: use crop, window or streaming"
            )
        width = decoder.config.width // decoder.config.heads
        if method.rope_parameters({"rope_theta": 1e4}, max(width, 4)) is not None:
            for scheme in schemes:
                if (base := attachment._rotary_base(scheme)) is not None:
                    attachment.frequencies[scheme] = DecoderFrequencies(method, base, width)
        return attachment

    def _positions(self, count: int) -> Tensor:
        return torch.arange(count, device=self.decoder.head.weight.device)

    @property
    def rotates(self) -> bool:
        """Whether some layer rotates queries and keys."""
        return any(scheme.angles(self._positions(2)) is not None for scheme in self.decoder.scheme.distinct_schemes)

    def _rotary_base(self, scheme: Scheme) -> float | None:
        """The base of a scheme's rotation, θ_f = base^(-2f/K), which is what transformers can change."""
        angles = scheme.angles(self._positions(2))
        if angles is None:
            return None
        theta_F = angles[1].double().cpu()
        if len(theta_F) < 2:
            raise BadInput(f"{self.name} rotates fewer than 4 dimensions")
        base = float(theta_F[1]) ** -len(theta_F)
        if not torch.allclose(theta_F, base ** -(torch.arange(len(theta_F)).double() / len(theta_F)), rtol=1e-6):
            raise BadInput(f"{self.name} has rotary frequencies that are not powers of a base")
        return base

    @contextmanager
    def open(self) -> Iterator[None]:
        """Context in which the method is attached."""
        before, self.decoder.extension = self.decoder.extension, self
        try:
            yield
        finally:
            self.decoder.extension = before

    def attention(self, scheme: Scheme, q_positions: Tensor, k_positions: Tensor, window: int | None) -> Attention:
        """The attention of layers with this scheme; tables are computed once and shared by them."""
        visibility = Visibility(torch.atleast_2d(q_positions), torch.atleast_2d(k_positions), None, window)
        length = int(visibility.q_positions.max()) + 1
        like = self.decoder.head.weight
        tables = [
            [self._table(scheme, positions, length, like) for positions in sides]
            for sides in ((r.a(visibility.q_positions), r.b(visibility.k_positions)) for r in self.regions)
        ]
        table_HN = bias_table(scheme, max(1, length), like)
        bias_at: BiasAt | None = None if table_HN is None else lambda m: table_HN[:, m.clamp(min=0)]

        def extended(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
            inputs = [
                RegionInputs(region, apply_rotary(q_BHTK, q_table), apply_rotary(k_BHSK, k_table))
                for region, (q_table, k_table) in zip(self.regions, tables, strict=True)
            ]
            return attend(inputs, v_BHSK, visibility, q_BHTK.shape[-1] ** -0.5, bias_at)

        return extended

    def _table(self, scheme: Scheme, positions: Tensor, length: int, like: Tensor) -> RotaryTable | None:
        """Cosines and sines at positions (B or 1, T), for queries or keys (B, H, T, K)."""
        if scheme in self.frequencies:
            cos, sin = self.frequencies[scheme].tables(positions, length)
        else:
            angles = scheme.angles(positions)
            if angles is None:
                return None
            cos, sin = angles.cos(), angles.sin()
        return cos[:, None].to(accumulation_dtype(like)), sin[:, None].to(accumulation_dtype(like))
