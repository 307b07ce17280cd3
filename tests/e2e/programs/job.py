"""A job that trains as far as it is asked: of each line of its input, so many steps more; at the end of it, it ends.

The batch of the step that the argument names is another one.
"""

import sys

import torch

from rltrace.recorder.session import session as sessions

differs = int(sys.argv[1])
parameter = torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.01)
step = 0
for line in sys.stdin:
    for _ in range(int(line)):
        optimizer.zero_grad()
        batch = torch.tensor([2.0 if step == differs else 1.0] * 8)
        (parameter * batch).square().mean().backward()
        optimizer.step()
        step += 1
    sessions.current.session._committer.flush()  # as it does every few seconds
    print(step, flush=True)
