"""A driver and two actors of Ray, in a cluster that runs already: ``actors.py ADDRESS``."""

import sys

import ray
import torch

import rltrace


@ray.remote
class Actor:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.weights = torch.randn(3)

    def act(self, x: float) -> float:
        return (self.weights * x).sum().item()


def main() -> None:
    ray.init(sys.argv[1], runtime_env={"env_vars": rltrace.environment()}, log_to_driver=False, configure_logging=False)
    actors = [Actor.remote(seed) for seed in range(2)]
    print(torch.tensor(ray.get([actor.act.remote(2.0) for actor in actors])).sum().item())
    ended = [actor.__ray_terminate__.remote() for actor in actors]
    ray.wait(ended, num_returns=len(ended))
    ray.shutdown()


main()
