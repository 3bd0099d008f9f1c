"""A few calls of every kernel on small rows, for `make test-gpu-sanitizer` to watch."""

from __future__ import annotations

import torch

from fast_lapsum import soft_topk
from fast_lapsum.triton import long_rows


def _call(n: int, dtype: torch.dtype, t: float, masked: bool) -> None:
    scores = torch.randn(2, n, device="cuda").to(dtype).requires_grad_()
    k = torch.tensor([n / 16, n / 3], dtype=torch.float64, device="cuda", requires_grad=True)
    mask = torch.rand(2, n, device="cuda") < 0.9 if masked else None
    p = soft_topk(scores, k, t, mask=mask)
    p.backward(torch.randn_like(p))
    total = p.detach().sum(-1, dtype=torch.float64)
    torch.testing.assert_close(total, k.detach(), rtol=1e-2, atol=0)
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def main() -> None:
    """Rows on chip, long rows, and long rows whose plan fails."""
    if not torch.cuda.is_available():
        raise SystemExit("error: no CUDA device")
    for n, t in ((33, 0.1), (1000, 1e-3), (4097, 1.0), (20_000, 1.0), (20_000, 1e-3)):
        _call(n, torch.float32, t, masked=n < 5000)
    _call(20_000, torch.bfloat16, 0.1, masked=True)
    default = long_rows.streaming
    for change in ({"capacity": 64}, {"rounds": 1}):
        long_rows.streaming = lambda n, change=change: default(n)._replace(**change)
        _call(20_000, torch.float32, 1e-3, masked=False)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
