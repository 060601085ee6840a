"""The two kinds of MLP: dense, and a mixture of experts of which each token takes a few."""

from dataclasses import dataclass

import torch

from noria.services.executor.families import Architecture
from noria.services.executor.operations import Operations
from noria.services.executor.products import Linear
from noria.services.executor.weights import Weights


@dataclass(slots=True, eq=False)
class Dense:
    """down(gated(gate_up(x)))."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor, operations: Operations) -> torch.Tensor:
        """Return [T, hidden]."""
        return operations.linear(operations.gated(operations.linear(x, self.gate_up)), self.down)


@dataclass(slots=True, eq=False)
class Mixture:
    """The experts that the router likes best, weighted by its softmax over them (Mixtral, Jiang et al., 2024).

    Each expert computes the rows that chose it; products have row floors, and a row's experts are added in order of
    their number, so that neither depends on the other rows.
    """

    router: Linear
    experts: list[Dense]
    experts_per_token: int

    def __call__(self, x: torch.Tensor, operations: Operations) -> torch.Tensor:
        """Return [T, hidden]."""
        likely = torch.softmax(operations.linear(x, self.router).float(), -1)
        weights, chosen = likely.topk(self.experts_per_token, -1)
        weights = weights / weights.cumsum(-1)[:, -1:]
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, choice = torch.nonzero(chosen == number, as_tuple=True)
            if len(rows):
                found = expert(x.index_select(0, rows), operations) * weights[rows, choice, None]
                out.index_add_(0, rows, found.to(x.dtype))
        return out


Mlp = Dense | Mixture


def load_mlp(weights: Weights, architecture: Architecture, prefix: str) -> Mlp:
    """A layer's MLP; prefix is the layer's."""
    hidden, inner = architecture.hidden, architecture.intermediate
    if not architecture.experts:
        mlp, bias = prefix + "mlp.", architecture.mlp_bias
        return Dense(
            weights.fused([(f"{mlp}{name}_proj", inner) for name in ("gate", "up")], hidden, bias=bias),
            weights.fused([(mlp + "down_proj", hidden)], inner, bias=bias),
        )
    block = prefix + "block_sparse_moe."
    experts = [f"{block}experts.{number}." for number in range(architecture.experts)]
    return Mixture(
        weights.fused([(block + "gate", architecture.experts)], hidden, bias=False),
        [
            Dense(
                weights.fused([(expert + "w1", inner), (expert + "w3", inner)], hidden, bias=False),
                weights.fused([(expert + "w2", hidden)], inner, bias=False),
            )
            for expert in experts
        ],
        architecture.experts_per_token,
    )
