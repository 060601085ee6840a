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
class Shared:
    """An expert that every token takes, as far as its gate lets it (Qwen's mixtures)."""

    expert: Dense
    gate: Linear


@dataclass(slots=True, eq=False)
class Mixture:
    """The experts that the router likes best, weighted by its softmax (Mixtral, Jiang et al., 2024).

    Each expert computes the rows that chose it; a row's experts are added in float32 in order of their number, so that
    nothing depends on the other rows. normed: a row's weights add up to 1.
    """

    router: Linear
    experts: list[Dense]
    per_token: int
    normed: bool
    shared: Shared | None

    def __call__(self, x: torch.Tensor, operations: Operations) -> torch.Tensor:
        """Return [T, hidden]."""
        likely = torch.softmax(operations.linear(x, self.router).float(), -1)
        weights, chosen = likely.topk(self.per_token, -1)
        if self.normed:
            weights = weights / weights.cumsum(-1)[:, -1:]
        places = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        total, dtype = torch.zeros(x.shape, dtype=torch.float32), x.dtype
        for expert, chosen_by in zip(self.experts, torch.split(places, counts), strict=True):
            if len(chosen_by):
                rows = chosen_by // self.per_token
                found = expert(x.index_select(0, rows), operations)
                total.index_add_(0, rows, found * weights.flatten()[chosen_by, None])
                dtype = found.dtype
        if self.shared is not None:
            open_share = operations.linear(x, self.shared.gate).float().sigmoid()
            total += self.shared.expert(x, operations) * open_share
        return total.to(dtype)


Mlp = Dense | Mixture


def load_mlp(weights: Weights, architecture: Architecture, prefix: str, layer: int) -> Mlp:
    """A layer's MLP; prefix is the layer's."""
    mlp, inner = prefix + "mlp.", architecture.intermediate
    experts = architecture.experts
    if experts is None or not experts.layers[layer]:
        return _dense(weights, architecture, mlp, inner)
    hidden, mixtral = architecture.hidden, architecture.family == "mixtral"
    block = prefix + "block_sparse_moe." if mixtral else mlp
    shared = None
    if experts.shared:
        gate = weights.gate(mlp + "shared_expert_gate", 1, hidden)
        shared = Shared(_dense(weights, architecture, mlp + "shared_expert.", experts.shared), gate)
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    return Mixture(
        weights.gate(block + "gate", experts.count, hidden),
        [
            _dense(weights, architecture, f"{block}experts.{number}.", experts.intermediate, names)
            for number in range(experts.count)
        ],
        experts.per_token,
        experts.normed,
        shared,
    )


def _dense(
    weights: Weights,
    architecture: Architecture,
    prefix: str,
    inner: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Dense:
    hidden, bias = architecture.hidden, architecture.mlp_bias
    gate, up, down = (prefix + name for name in names)
    parts = [(prefix + "gate_up_proj", 2 * inner)] if architecture.fused else [(gate, inner), (up, inner)]
    return Dense(weights.fused(parts, hidden, bias=bias), weights.fused([(down, hidden)], inner, bias=bias))
