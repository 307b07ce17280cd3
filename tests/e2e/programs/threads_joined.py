"""Waits until no thread but its own is left; then trains."""

import threading
import time

import torch

threading.Thread(target=lambda: torch.ones(2).sum()).start()
while threading.active_count() > 1:
    time.sleep(0.01)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.randn(4, 3)).pow(2).mean().backward()
    optimizer.step()
print("threads", [thread.name for thread in threading.enumerate()])
print("weights", [parameter.tolist() for parameter in net.parameters()])
raise SystemExit(7)
