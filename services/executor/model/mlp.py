"""The two kinds of MLP: dense, and a mixture of experts of which each token takes a few."""

from dataclasses import dataclass
from typing import Protocol

import torch

from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.linear_layers import GroupedLinear, Linear
from noria.services.executor.model.operations import StepOperations
from noria.services.executor.model.weights import DecoderWeights


@dataclass(slots=True, eq=False)
class DenseMlp:
    """A gated MLP: down(activation(gate(x)) * up(x)), gate and up in one product."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor, operations: StepOperations) -> torch.Tensor:
        """Return [T, hidden]."""
        return operations.linear(operations.gated(operations.linear(x, self.gate_up)), self.down)


class ExpertWeights(Protocol):
    """The experts of a mixture, for rows sorted by expert."""

    def __call__(self, x: torch.Tensor, counts: torch.Tensor, operations: StepOperations) -> torch.Tensor:
        """Compute rows sorted by expert, counts [experts] of them each. Returns [rows, hidden]."""


@dataclass(slots=True, eq=False)
class LoopedExperts:
    """Experts computed one after the other; the host must know how many rows each has."""

    experts: list[DenseMlp]

    def __call__(self, x: torch.Tensor, counts: torch.Tensor, operations: StepOperations) -> torch.Tensor:
        """Return [rows, hidden]."""
        found: torch.Tensor | None = None
        first = 0
        for expert, part in zip(self.experts, torch.split(x, counts.tolist()), strict=True):
            if len(part):
                made = expert(part, operations)
                if found is None:
                    found = torch.empty(len(x), made.shape[1], dtype=made.dtype, device=x.device)
                found[first : first + len(part)] = made
                first += len(part)
        assert found is not None
        return found


@dataclass(slots=True, eq=False)
class GroupedExperts:
    """Experts computed together in two grouped products; the row counts stay on the device."""

    gate_up: GroupedLinear
    down: GroupedLinear

    def __call__(self, x: torch.Tensor, counts: torch.Tensor, operations: StepOperations) -> torch.Tensor:
        """Return [rows, hidden]."""
        ends = counts.cumsum(0).to(torch.int32)
        return self.down(operations.gated(self.gate_up(x, ends)), ends)


@dataclass(slots=True, eq=False)
class SharedExpert:
    """An expert that every token takes, scaled by the sigmoid of a gate (Qwen's mixtures)."""

    expert: DenseMlp
    gate: Linear


@dataclass(slots=True, eq=False)
class MixtureOfExperts:
    """The likeliest experts of each token, weighted by the router's softmax (Mixtral, Jiang et al., 2024).

    Rows are brought into the order of their experts, so that each expert computes rows that lie together; a row's experts
    are added in float32 in order of their number, so that nothing depends on the other rows. normed: a row's weights add
    up to 1.
    """

    router: Linear
    experts: ExpertWeights
    count: int
    per_token: int
    normed: bool
    shared: SharedExpert | None

    def __call__(self, x: torch.Tensor, operations: StepOperations) -> torch.Tensor:
        """Return [T, hidden]."""
        likely = torch.softmax(operations.linear(x, self.router).float(), -1)
        weights, chosen = likely.topk(self.per_token, -1)
        if self.normed:
            weights = weights / weights.cumsum(-1)[:, -1:]
        chosen, order = chosen.sort(-1)
        weights = weights.gather(-1, order)[..., None]
        ids = chosen.flatten()
        places = ids.argsort(stable=True)
        # Not bincount, which asks the device for the largest.
        counts = torch.zeros(self.count, dtype=torch.int64, device=x.device).index_add_(0, ids, torch.ones_like(ids))
        operations.experts.add(counts)
        found = self.experts(x.index_select(0, places // self.per_token), counts, operations)
        mine = found.index_select(0, places.argsort()).view(len(x), self.per_token, -1)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for index in range(self.per_token):
            total += mine[:, index] * weights[:, index]
        if self.shared is not None:
            open_share = operations.linear(x, self.shared.gate).float().sigmoid()
            total += self.shared.expert(x, operations) * open_share
        return total.to(found.dtype)


def load_mlp(
    weights: DecoderWeights, architecture: Architecture, prefix: str, layer: int
) -> DenseMlp | MixtureOfExperts:
    """Load a layer's MLP. prefix: of the layer's tensor names, with its dot."""
    mlp, inner = prefix + "mlp.", architecture.intermediate
    experts = architecture.experts
    if experts is None or not experts.layers[layer]:
        return _dense(weights, architecture, mlp, inner)
    hidden, mixtral = architecture.hidden, architecture.family == "mixtral"
    block = prefix + "block_sparse_moe." if mixtral else mlp
    shared = None
    if experts.shared:
        gate = weights.gate(mlp + "shared_expert_gate", 1, hidden)
        shared = SharedExpert(_dense(weights, architecture, mlp + "shared_expert.", experts.shared), gate)
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    return MixtureOfExperts(
        weights.gate(block + "gate", experts.count, hidden),
        _experts(weights, architecture, [f"{block}experts.{number}." for number in range(experts.count)], names),
        experts.count,
        experts.per_token,
        experts.normed,
        shared,
    )


def _experts(
    weights: DecoderWeights, facts: Architecture, prefixes: list[str], names: tuple[str, str, str]
) -> ExpertWeights:
    assert facts.experts is not None
    inner, (gate, up, down) = facts.experts.intermediate, names
    if not facts.mlp_bias and not facts.fused and weights.groups:
        return GroupedExperts(
            weights.grouped([[(prefix + gate, inner), (prefix + up, inner)] for prefix in prefixes], facts.hidden),
            weights.grouped([[(prefix + down, facts.hidden)] for prefix in prefixes], inner),
        )
    return LoopedExperts([_dense(weights, facts, prefix, inner, names) for prefix in prefixes])


def _dense(
    weights: DecoderWeights,
    architecture: Architecture,
    prefix: str,
    inner: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> DenseMlp:
    hidden, bias = architecture.hidden, architecture.mlp_bias
    gate, up, down = (prefix + name for name in names)
    parts = [(prefix + "gate_up_proj", 2 * inner)] if architecture.fused else [(gate, inner), (up, inner)]
    return DenseMlp(weights.fused(parts, hidden, bias=bias), weights.fused([(down, hidden)], inner, bias=bias))
