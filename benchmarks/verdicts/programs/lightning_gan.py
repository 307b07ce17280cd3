"""Lightning, optimised by hand: a generator of states and its critic, gradients of two batches a step, stochastic
weight averages, a validation loop, a checkpoint that is loaded again.
"""

import tempfile
from pathlib import Path

import lightning
import torch
from ending import end
from lightning.pytorch.callbacks import ModelCheckpoint, WeightAveraging
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.data import DataLoader, TensorDataset

lightning.seed_everything(11, workers=True)


class Gan(lightning.LightningModule):
    """States of an environment, drawn and told from real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.LeakyReLU(), nn.Linear(32, 6))
        self.critic = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.1), nn.LeakyReLU(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        (real,) = batch
        creator, judge = self.optimizers()
        draws = self.generator(torch.randn(len(real), 4))
        self.toggle_optimizer(judge)
        right = functional.softplus(-self.critic(real)).mean() + functional.softplus(self.critic(draws.detach())).mean()
        self.manual_backward(right / 2)
        if index % 2:
            self.clip_gradients(judge, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            judge.step()
            judge.zero_grad()
        self.untoggle_optimizer(judge)
        self.toggle_optimizer(creator)
        fooled = functional.softplus(-self.critic(draws)).mean()
        self.manual_backward(fooled)
        creator.step()
        creator.zero_grad()
        self.untoggle_optimizer(creator)
        self.log_dict({"judge": right, "creator": fooled})

    def validation_step(self, batch, index):
        self.log("real", self.critic(batch[0]).mean())

    def configure_optimizers(self):
        return [
            torch.optim.AdamW(self.generator.parameters(), lr=2e-3, betas=(0.5, 0.9)),
            torch.optim.RMSprop(self.critic.parameters(), lr=1e-3),
        ]


states = torch.randn(192, 6) @ torch.randn(6, 6)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(dirpath=folder, filename="last"),
            WeightAveraging(avg_fn=get_ema_avg_fn(0.9)),
        ],
    )
    model = Gan()
    loaders = [DataLoader(TensorDataset(states), batch_size=16, shuffle=shuffle) for shuffle in (True, False)]
    trainer.fit(model, *loaders)
    again = Gan.load_from_checkpoint(next(Path(folder).glob("*.ckpt")), weights_only=False)
    end([*model.state_dict().values(), *again.state_dict().values()])
