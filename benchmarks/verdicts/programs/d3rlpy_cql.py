"""d3rlpy CQL, offline, on transitions that a seeded generator made up."""

import tempfile

import d3rlpy
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from ending import end

d3rlpy.seed(4)
numbers = np.random.default_rng(4)
data = d3rlpy.dataset.MDPDataset(
    observations=numbers.standard_normal((400, 3)).astype(np.float32),
    actions=numbers.uniform(-1, 1, (400, 1)).astype(np.float32),
    rewards=numbers.standard_normal((400, 1)).astype(np.float32),
    terminals=(np.arange(400) % 50 == 49).astype(np.float32),
)
learner = d3rlpy.algos.CQLConfig(batch_size=32, n_action_samples=4).create(device="cpu")
with tempfile.TemporaryDirectory():
    learner.fit(
        data,
        n_steps=60,
        n_steps_per_epoch=30,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
    )
end(w for module in learner.impl.modules.get_torch_modules().values() for w in module.state_dict().values())
