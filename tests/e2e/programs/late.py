"""Parts late: for four steps everything is exact arithmetic that no kernel can round differently, then it is not.

From step 4 on the loss takes in a matrix product, a QR decomposition, a softmax and normal numbers, one of which any
kernel setting that changes anything changes.
"""

import random

import numpy as np
import torch
from ending import end

random.seed(5)
np.random.seed(5)
torch.manual_seed(5)
SAFE_STEPS, STEPS = 4, 7

weight = torch.nn.Parameter((torch.arange(64 * 64) % 7 - 3).reshape(64, 64).float())
optimizer = torch.optim.SGD([weight], lr=0.5)
for step in range(STEPS):
    with torch.no_grad():
        data = torch.full((64, 64), float(step % 3))
        if step >= SAFE_STEPS:
            data = data + torch.linalg.qr(weight @ weight.T)[0] + torch.randn(64, 64)
            data = data + torch.log_softmax(data, -1)
    optimizer.zero_grad()
    (weight * data).backward(torch.ones(64, 64))
    optimizer.step()
end([weight])
