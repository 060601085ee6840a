import torch

class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = ...,
        use_cuda_graph: bool = ...,
        qo_indptr_buf: torch.Tensor | None = ...,
        paged_kv_indptr_buf: torch.Tensor | None = ...,
        paged_kv_indices_buf: torch.Tensor | None = ...,
        paged_kv_last_page_len_buf: torch.Tensor | None = ...,
    ) -> None: ...
    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = ...,
        sm_scale: float | None = ...,
        window_left: int = ...,
        logits_soft_cap: float | None = ...,
        q_data_type: torch.dtype = ...,
        kv_data_type: torch.dtype | None = ...,
    ) -> None: ...
    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        *,
        out: torch.Tensor | None = ...,
    ) -> torch.Tensor: ...
