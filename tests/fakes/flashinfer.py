"""FlashInfer's paged attention as its documentation defines it, in plain PyTorch: what our lists must mean."""

import torch


class BatchPrefillWithPagedKVCacheWrapper:
    """Queries of each sequence are its last tokens. Holds to what is promised of graphs: sizes are those of the buffers."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str,
        use_cuda_graph: bool,
        qo_indptr_buf: torch.Tensor,
        paged_kv_indptr_buf: torch.Tensor,
        paged_kv_indices_buf: torch.Tensor,
        paged_kv_last_page_len_buf: torch.Tensor,
    ) -> None:
        assert kv_layout == "NHD" and use_cuda_graph
        self.batch = len(qo_indptr_buf) - 1
        assert len(paged_kv_indptr_buf) == self.batch + 1 and len(paged_kv_last_page_len_buf) == self.batch
        self.most_pages = len(paged_kv_indices_buf)
        self.most_rows = -1

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
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        assert causal and q_data_type == kv_data_type
        assert len(qo_indptr) == self.batch + 1 == len(paged_kv_indptr) and len(paged_kv_last_page_len) == self.batch
        assert int(paged_kv_indptr[-1]) == len(paged_kv_indices) <= self.most_pages
        assert int(paged_kv_last_page_len.min()) >= 1 and int(paged_kv_last_page_len.max()) <= page_size
        if self.most_rows < 0:
            self.most_rows = int(qo_indptr[-1])
        assert int(qo_indptr[-1]) <= self.most_rows
        self.lists = [each.tolist() for each in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len)]
        self.pages, self.page_size = paged_kv_indices.long(), page_size
        self.scale, self.window_left, self.cap = sm_scale, window_left, logits_soft_cap
        self.group = num_qo_heads // num_kv_heads

    def run(
        self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor], *, out: torch.Tensor
    ) -> torch.Tensor:
        rows, starts, last = self.lists
        for sequence in range(self.batch):
            asked = q[rows[sequence] : rows[sequence + 1]].float()
            pages = self.pages[starts[sequence] : starts[sequence + 1]]
            length = (len(pages) - 1) * self.page_size + last[sequence]
            keys, values = (
                each[pages].flatten(0, 1)[:length].float().repeat_interleave(self.group, 1) for each in paged_kv_cache
            )
            at = torch.arange(length - len(asked), length)[:, None]
            scores = torch.einsum("qhd,khd->hqk", asked, keys) * self.scale
            if self.cap:
                scores = self.cap * torch.tanh(scores / self.cap)
            hidden = torch.arange(length) > at
            if self.window_left >= 0:
                hidden |= torch.arange(length) < at - self.window_left
            shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            out[rows[sequence] : rows[sequence + 1]] = torch.einsum("hqk,khd->qhd", shares, values).to(out.dtype)
        return out
