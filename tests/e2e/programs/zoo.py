"""A CNN, an LSTM and a Transformer with dropout, trained together by AdamW for a few steps."""

import random

import numpy as np
import torch
from ending import end
from torch import nn

random.seed(5)
np.random.seed(5)
torch.manual_seed(5)


class Zoo(nn.Module):
    """Images of a short film to one number."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.AdaptiveAvgPool2d(4))
        self.lstm = nn.LSTM(64, 32, batch_first=True)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 1)

    def forward(self, film: torch.Tensor) -> torch.Tensor:
        frames = self.cnn(film.flatten(0, 1)).flatten(1).unflatten(0, film.shape[:2])
        return self.head(self.transformer(self.lstm(frames)[0])).mean(1)


model = Zoo()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
for _ in range(5):
    film, target = torch.randn(3, 6, 1, 12, 12), torch.randn(3, 1)
    loss = nn.functional.mse_loss(model(film), target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print(f"loss {loss.item():.9f}")
end([*model.state_dict().values(), *(buffer for state in optimizer.state.values() for buffer in state.values())])
