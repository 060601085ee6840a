"""The two kinds of MLP: dense, and a mixture of experts of which each token takes a few."""

from dataclasses import dataclass

import torch

from noria.services.executor.families import Architecture
from noria.services.executor.operations import StepOperations
from noria.services.executor.products import Linear
from noria.services.executor.weights import Weights


@dataclass(slots=True, eq=False)
class Dense:
    """down(gated(gate_up(x)))."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor, operations: StepOperations) -> torch.Tensor:
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

    Rows are brought into the order of their experts, so that each expert computes rows that lie together; a row's experts
    are added in float32 in order of their number, so that nothing depends on the other rows. normed: a row's weights add
    up to 1.
    """

    router: Linear
    experts: list[Dense]
    per_token: int
    normed: bool
    shared: Shared | None

    def __call__(self, x: torch.Tensor, operations: StepOperations) -> torch.Tensor:
        """Return [T, hidden]."""
        likely = torch.softmax(operations.linear(x, self.router).float(), -1)
        weights, chosen = likely.topk(self.per_token, -1)
        if self.normed:
            weights = weights / weights.cumsum(-1)[:, -1:]
        chosen, order = chosen.sort(-1)
        weights = weights.gather(-1, order)[..., None]
        places = chosen.flatten().argsort(stable=True)
        found = self._experts(x, places // self.per_token, chosen, operations)
        mine = found.index_select(0, places.argsort()).view(len(x), self.per_token, -1)
        total = torch.zeros(x.shape, dtype=torch.float32)
        for index in range(self.per_token):
            total += mine[:, index] * weights[:, index]
        if self.shared is not None:
            open_share = operations.linear(x, self.shared.gate).float().sigmoid()
            total += self.shared.expert(x, operations) * open_share
        return total.to(found.dtype)

    def _experts(
        self, x: torch.Tensor, rows: torch.Tensor, chosen: torch.Tensor, operations: StepOperations
    ) -> torch.Tensor:
        """What the experts make of the rows of x, each of its part of them: [rows, hidden]."""
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        given = torch.split(x.index_select(0, rows), counts)
        found: torch.Tensor | None = None
        first = 0
        for expert, part in zip(self.experts, given, strict=True):
            if len(part):
                made = expert(part, operations)
                if found is None:
                    found = torch.empty(len(rows), made.shape[1], dtype=made.dtype)
                found[first : first + len(part)] = made
                first += len(part)
        assert found is not None
        return found


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
