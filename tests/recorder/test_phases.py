"""Phases are known from what a program does; nothing is asked of it."""

import gymnasium
import numpy as np
import pytest
import torch
from recorded import Record, Recorded
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn
from toy_environments import Walk, events

import rltrace
from rltrace.trace.format.schema import Kind, Phase, Step


def phases_of(recorded: Recorded, source: str, name: str = "addmm") -> list[str]:
    """Phases of the rows of an op that were called from this line, in order, each run of equal ones once."""
    found: list[str] = []
    for row in recorded.named(name):
        if any(frame["source"].startswith(source) for frame in row.stack):
            phase = row.phase.name.lower()
            if not found or found[-1] != phase:
                found.append(phase)
    return found


def network(inputs: int = 1, outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


def test_a_loop_with_an_update_after_each_rollout(record: Record) -> None:
    """The way of CleanRL's PPO: no gradients between environment steps, several passes over what was collected."""
    with record.block() as found:
        env, agent = Walk(), network()
        optimizer = torch.optim.SGD(agent.parameters(), 0.1)
        for _ in range(2):
            seen, _ = env.reset(seed=0)
            batch = []
            for _ in range(3):
                with torch.no_grad():
                    action = agent(torch.as_tensor(seen)[None]).argmax()
                batch.append(seen)
                seen, *_ = env.step(int(action))
            for _ in range(2):
                loss = agent(torch.as_tensor(np.stack(batch))).pow(2).mean()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
                optimizer.step()
    assert found.rows[0].phase is Phase.INIT
    assert phases_of(found, "action = agent") == ["rollout"]
    assert phases_of(found, "loss = agent") == ["forward"]
    assert phases_of(found, "loss = agent", "pow") == ["forward"]
    assert {row.phase for row in found.rows if row.kind is Kind.ENVIRONMENT_STEP} == {Phase.ROLLOUT}
    assert {row.phase for row in found.named("linalg_vector_norm")} == {Phase.OTHER}
    assert {row.phase for row in found.named("_foreach_add_")} <= {Phase.OPTIMIZER}


def test_an_update_at_every_step_with_a_target_network(record: Record) -> None:
    """The way of CleanRL's DQN: actions are chosen with gradients on, targets without; known after the first time."""
    with record.block() as found:
        env, agent, target = Walk(100), network(), network()
        optimizer = torch.optim.SGD(agent.parameters(), 0.1)
        seen, _ = env.reset(seed=0)
        for _ in range(4):
            action = agent(torch.as_tensor(seen)[None]).argmax()
            seen, reward, *_ = env.step(int(action))
            with torch.no_grad():
                wanted = target(torch.as_tensor(seen)[None]).max() + reward
            loss = (agent(torch.as_tensor(seen)[None]).max() - wanted).pow(2)
            loss.backward()
            optimizer.step()
    assert phases_of(found, "action = agent")[-1] == "rollout"
    assert phases_of(found, "wanted = target")[-1] == "forward"
    assert phases_of(found, "loss = (agent") == ["forward"]


def evaluating() -> None:
    """Learns from the steps of one environment alone, and evaluates on another."""
    env, other, agent = Walk(), Walk(), network()
    optimizer = torch.optim.SGD(agent.parameters(), 0.1)
    for _ in range(3):
        seen, _ = env.reset(seed=0)
        seen, *_ = env.step(1)
        loss = agent(torch.as_tensor(seen)[None]).sum()
        loss.backward()
        optimizer.step()
        seen, _ = other.reset(seed=1)
        with torch.no_grad():
            judged = agent(torch.as_tensor(seen)[None])
        other.step(int(judged.argmax()))


def test_an_environment_that_nothing_is_learned_from_is_evaluated_on(record: Record) -> None:
    """Its steps are no steps of the training either: the steps table leaves them out, whether ops are rows or not."""
    found = record(evaluating)
    assert phases_of(found, "judged = agent") == ["evaluation"]
    events = [row.phase for row in found.rows if row.kind is Kind.ENVIRONMENT_STEP]
    assert events == [Phase.ROLLOUT, Phase.EVALUATION] * 3
    for got in (found, record(evaluating, level="step")):
        assert got.column(Step.ENVIRONMENT_STEPS) == [1, 2, 3]


def test_environments_that_take_the_place_of_others_are_trained_on(record: Record) -> None:
    """A new one for every episode: from the second replacement on that is known."""
    with record.block() as found:
        agent = network()
        optimizer = torch.optim.SGD(agent.parameters(), 0.1)
        for _ in range(4):
            env = Walk()
            env.reset(seed=0)
            seen, *_ = env.step(1)
            agent(torch.as_tensor(seen)[None]).sum().backward()
            optimizer.step()
    events = [row.phase for row in found.rows if row.kind is Kind.ENVIRONMENT_STEP]
    assert events[0] is Phase.ROLLOUT
    assert events[2:] == [Phase.ROLLOUT] * 2


def test_modules_called_in_constructors_are_part_of_the_initialisation(record: Record) -> None:
    class Shaped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()
            self.size = self.body(torch.zeros(1, 1)).shape[1]

    assert {row.phase for row in record(Shaped).rows} == {Phase.INIT}


def test_what_the_program_says_overrides_what_it_does(record: Record) -> None:
    with record.block() as found:
        env, agent = Walk(), network()
        with rltrace.phase("evaluation"):
            seen, _ = env.reset(seed=0)
            agent(torch.as_tensor(seen)[None])
        env.step(0)
        torch.ones(1).sin()
    assert {row.phase for row in found.named("addmm")} == {Phase.EVALUATION}
    assert found.one("sin").phase is Phase.ROLLOUT


@pytest.mark.filterwarnings("ignore")
def test_stable_baselines_ppo_with_an_evaluation_in_between(record: Record) -> None:
    with record.block() as found:
        model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=16, batch_size=16, n_epochs=1, seed=0)
        model.learn(16)
        evaluate_policy(model, gymnasium.make("CartPole-v1"), n_eval_episodes=1)
        model.learn(16, reset_num_timesteps=False)
    assert phases_of(found, "actions, values, log_probs = self.policy") == ["rollout"]
    assert phases_of(found, "values = self.policy.predict_values") == ["rollout"]
    assert phases_of(found, "values, log_prob, entropy = self.policy.evaluate_actions") == ["forward"]
    assert phases_of(found, "actions, states = model.predict") == ["evaluation"]
    assert found.column(Step.ENVIRONMENT_STEPS) == [16, 32]


@pytest.mark.filterwarnings("ignore")
def test_stable_baselines_dqn_with_a_callback_that_evaluates(record: Record) -> None:
    """Events of two environments, the one that is learned from and the one of the callback."""
    with record.block() as found:
        sizes = {"learning_starts": 4, "train_freq": 2, "batch_size": 4, "policy_kwargs": {"net_arch": [8]}}
        model = DQN("MlpPolicy", Walk(length=99), seed=0, device="cpu", exploration_fraction=0.01, **sizes)
        model.learn(12, callback=EvalCallback(Walk(length=1), eval_freq=6, n_eval_episodes=2, verbose=0))
    assert phases_of(found, "q_values = self(observation)") == ["rollout", "evaluation", "rollout", "evaluation"]
    assert phases_of(found, "current_q_values = self.q_net") == ["forward"]
    stepped = [event for event in events(found) if event.kind is Kind.ENVIRONMENT_STEP]
    assert [(event.what, event.row.phase) for event in stepped[:8]] == [
        *[("environment 0", Phase.ROLLOUT)] * 6,
        *[("environment 1", Phase.EVALUATION)] * 2,
    ]
    assert len(stepped) == 12 + 4
    assert found.steps[-1][Step.ENVIRONMENT_STEPS] == 12


@pytest.mark.filterwarnings("ignore")
def test_steps_of_evaluations_are_counted_at_no_level(record: Record) -> None:
    """Those of Stable-Baselines3, whether ops are rows or not."""

    def program() -> None:
        model = PPO("MlpPolicy", Walk(length=99), n_steps=16, batch_size=8, n_epochs=1, seed=0, device="cpu")
        evaluation = EvalCallback(Walk(length=1), eval_freq=8, n_eval_episodes=1, verbose=0)
        model.learn(32, callback=evaluation)

    for level in ("op", "step"):
        assert record(program, level=level).column(Step.ENVIRONMENT_STEPS) == [16, 16, 32, 32]
