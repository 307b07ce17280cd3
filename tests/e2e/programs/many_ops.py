"""Many operators, forward and backward, once each: what a recorder must be able to look at without harm."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from ending import end
from torch import nn

warnings.simplefilter("ignore")
random.seed(5)
np.random.seed(5)
torch.manual_seed(5)
weights: list[torch.Tensor] = []


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def definite() -> torch.Tensor:
    factor = some(5, 5)
    return factor @ factor.T + 3 * torch.eye(5)


def backward(result: Any) -> None:
    if isinstance(result, (tuple, list)):
        for part in result:
            backward(part)
    elif isinstance(result, torch.Tensor) and result.requires_grad:
        (result.abs() if result.is_complex() else result.float()).sum().backward(retain_graph=True)
        weights.append(result)


def recurrent() -> None:
    for cell in (nn.LSTM, nn.GRU, nn.RNN):
        backward(cell(7, 5, 2, batch_first=True, bidirectional=True)(some(3, 6, 7))[0])
        backward(cell(7, 5)(some(6, 7))[0])
    packed = nn.utils.rnn.pack_padded_sequence(some(6, 3, 7), [6, 4, 2])
    backward(nn.LSTM(7, 5, proj_size=3)(packed)[0].data)


def attention() -> None:
    backward(nn.MultiheadAttention(8, 2, batch_first=True)(*[some(2, 5, 8)] * 3))
    for dropout in (0.0, 0.3):
        backward(F.scaled_dot_product_attention(*(some(2, 2, 5, 8) for _ in range(3)), dropout_p=dropout))
        backward(F.scaled_dot_product_attention(*(some(2, 2, 5, 8) for _ in range(3)), is_causal=True))
    with torch.inference_mode():
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()(torch.randn(2, 5, 8))


def layers() -> None:
    for mode in ("sum", "mean", "max"):
        backward(nn.EmbeddingBag(10, 4, mode=mode)(torch.arange(8) % 10, torch.tensor([0, 3, 5])))
    for convolution in (nn.Conv2d, nn.ConvTranspose2d):
        backward(convolution(4, 6, 3, stride=2, padding=1)(some(2, 4, 9, 9)))
    for pool in (nn.MaxPool2d(2, return_indices=True), nn.AvgPool2d(3, 2), nn.AdaptiveMaxPool2d(3)):
        backward(pool(some(2, 3, 8, 8)))
    for training in (True, False):
        backward(nn.BatchNorm2d(3).train(training)(some(4, 3, 5, 5)))
        backward(nn.InstanceNorm2d(3, affine=True, track_running_stats=True).train(training)(some(4, 3, 5, 5)))
    for norm in (nn.GroupNorm(2, 4), nn.LocalResponseNorm(2)):
        backward(norm(some(3, 4, 5, 5)))
    for activation in (nn.GELU(), nn.SiLU(), nn.PReLU(), nn.RReLU(), nn.LogSigmoid(), nn.GLU(), nn.Dropout(0.4)):
        backward(activation(some(4, 6)))
    backward(F.interpolate(some(1, 2, 5, 5), scale_factor=2, mode="bicubic"))
    backward(F.grid_sample(some(1, 2, 5, 5), some(1, 3, 3, 2)))
    backward(F.pad(some(1, 2, 5, 5), (1, 2, 1, 1), mode="reflect"))


def losses() -> None:
    target = torch.tensor([0, 2, 1, 0])
    for reduction in ("none", "mean", "sum"):
        backward(F.cross_entropy(some(4, 3), target, reduction=reduction, ignore_index=0, label_smoothing=0.1))
        backward(F.nll_loss(F.log_softmax(some(4, 3), 1), target, reduction=reduction))
        backward(F.multi_margin_loss(some(4, 3), target, reduction=reduction))
        backward(F.binary_cross_entropy_with_logits(some(4, 3), torch.rand(4, 3), reduction=reduction))
        text, lengths = torch.tensor([[1, 2, 3], [2, 2, 4]]), (torch.tensor([12, 10]), torch.tensor([3, 2]))
        backward(F.ctc_loss(F.log_softmax(some(12, 2, 5), 2), text, *lengths, reduction=reduction))
    backward(torch.cdist(some(4, 3), some(5, 3)))


def algebra() -> None:
    linalg = torch.linalg
    for function in (linalg.svd, linalg.qr, linalg.eigh, linalg.cholesky, linalg.slogdet, linalg.lu, linalg.pinv):
        backward(function(definite()))
    backward(linalg.solve(definite(), some(5, 2)))
    backward(torch.fft.irfft(torch.fft.rfft(some(3, 8))))
    backward(torch.bmm(some(2, 3, 4).bfloat16(), some(2, 4, 3).bfloat16()))
    backward(torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)) @ some(2, 3))
    _ = torch.randn(3, 3).to_sparse_csr() @ torch.randn(3, 2)
    torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8).dequantize()


def selection() -> None:
    for function in (torch.cumsum, torch.sort, torch.median, torch.mode, torch.cummax, torch.logsumexp, torch.std):
        backward(function(some(4, 6), dim=1))
    backward(torch.topk(some(4, 6), 3))
    backward(some(4, 4)[torch.randn(4, 4) > 0])
    backward(torch.zeros(4, 4).scatter(1, torch.zeros(4, 2, dtype=torch.long), some(4, 2)))
    backward(torch.zeros(4, 4).index_put((torch.tensor([0, 0]), torch.tensor([1, 1])), some(2), accumulate=True))
    torch.unique(torch.tensor([3, 1, 3, 2]), return_inverse=True, return_counts=True)
    torch.histc(torch.randn(20), 5)


def draws() -> None:
    torch.multinomial(torch.rand(4, 5), 2)
    torch.randperm(9)
    torch.poisson(torch.rand(5))
    backward(torch.distributions.Dirichlet(some(5).exp()).rsample())
    backward(torch.distributions.Beta(some(3).exp(), some(3).exp()).rsample())


def optimizers() -> None:
    kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
    for kind in (*kinds, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Rprop, torch.optim.Adafactor):
        for options in ({}, {"foreach": True}, {"fused": True}):
            weight = nn.Parameter(torch.randn(6, 5))
            try:
                optimizer = kind([weight], lr=1e-2, **options)
            except (TypeError, RuntimeError):  # not every optimizer has every form
                continue
            for _ in range(2):
                optimizer.zero_grad()
                (weight**2).sum().backward()
                optimizer.step()
            weights.append(weight)


groups: list[Callable[[], None]] = [recurrent, attention, layers, losses, algebra, selection, draws, optimizers]
for group in groups:
    group()
end(weight.float() if not weight.is_complex() else torch.view_as_real(weight) for weight in weights)
