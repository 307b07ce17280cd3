"""PPO that is one compiled function, after PureJaxRL: the environment is a JAX function, too.

python examples/purejax_ppo.py
"""

import argparse
import hashlib
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

# --- arguments ------------------------------------------------------------------------------------

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--updates", type=int, default=20)
parser.add_argument("--environments", type=int, default=8)
parser.add_argument("--rollout-steps", type=int, default=32, help="steps of each environment between two updates")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--minibatches", type=int, default=4)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--learning-rate", type=float, default=2.5e-3)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--trace-decay", type=float, default=0.95)
parser.add_argument("--clip", type=float, default=0.2)
args = parser.parse_args()

# --- CartPole -------------------------------------------------------------------------------------


def reset(key):
    return 0.1 * (jax.random.uniform(key, (4,)) - 0.5)


def step(key, state, action):
    """The state after a step of 0.02 s, its reward, and whether the episode ended; if so, the state is a new one."""
    _, speed, angle, turning = state
    force = jnp.where(action == 1, 10.0, -10.0)
    pushed = (force + 0.05 * turning**2 * jnp.sin(angle)) / 1.1
    turn = (9.8 * jnp.sin(angle) - jnp.cos(angle) * pushed) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    faster = pushed - 0.05 * turn * jnp.cos(angle) / 1.1
    moved = state + 0.02 * jnp.stack([speed, faster, turning, turn])
    done = (jnp.abs(moved[0]) > 2.4) | (jnp.abs(moved[2]) > 0.2095)
    return jnp.where(done, reset(key), moved), 1.0, done


# --- agent ----------------------------------------------------------------------------------------


def new_agent(key):
    sizes = {"seen": (4, args.hidden), "actor": (args.hidden, 2), "critic": (args.hidden, 1)}
    keys = dict(zip(sizes, jax.random.split(key, len(sizes)), strict=True))
    return {
        name: {"weight": jax.random.uniform(keys[name], size, minval=-1.0) / size[0] ** 0.5, "bias": jnp.zeros(size[1])}
        for name, size in sizes.items()
    }


def layer(weights, inputs):
    return inputs @ weights["weight"] + weights["bias"]


def forward(agent, observation):
    """Logits of the two actions, and the value."""
    features = jnp.tanh(layer(agent["seen"], observation))
    return layer(agent["actor"], features), layer(agent["critic"], features).squeeze(-1)


def log_prob(logits, action):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1).squeeze(-1)


class Adam(NamedTuple):
    mean: dict
    square: dict
    count: jax.Array


def adam(state, gradients, agent):
    count = state.count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, gradients)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, state.square, gradients)

    def moved(weight, m, s):
        return weight - args.learning_rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-5)

    return Adam(mean, square, count), jax.tree.map(moved, agent, mean, square)


# --- training -------------------------------------------------------------------------------------


class Transition(NamedTuple):
    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


def act(agent, carry, _):
    key, observation = carry
    key, sampling, stepping = jax.random.split(key, 3)
    logits, value = forward(agent, observation)
    action = jax.random.categorical(sampling, logits)
    following, reward, done = jax.vmap(step)(jax.random.split(stepping, args.environments), observation, action)
    return (key, following), Transition(observation, action, log_prob(logits, action), value, reward, done)


def advantage(later, transition):
    """Generalised advantage estimation, from the last step back."""
    following, value = later
    delta = transition.reward + args.gamma * value * (1 - transition.done) - transition.value
    following = delta + args.gamma * args.trace_decay * (1 - transition.done) * following
    return (following, transition.value), following


def loss(agent, batch, advantages):
    logits, value = forward(agent, batch.observation)
    ratio = jnp.exp(log_prob(logits, batch.action) - batch.log_prob)
    normal = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy = -jnp.minimum(normal * ratio, normal * jnp.clip(ratio, 1 - args.clip, 1 + args.clip)).mean()
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
    return policy + 0.5 * jnp.square(value - advantages - batch.value).mean() - 0.01 * entropy


def learn(state, minibatch):
    agent, optimizer = state
    value, gradients = jax.value_and_grad(loss)(agent, *minibatch)
    optimizer, agent = adam(optimizer, gradients, agent)
    return (agent, optimizer), value


def epoch(data, state, key):
    order = jax.random.permutation(key, args.environments * args.rollout_steps)
    shuffled = jax.tree.map(lambda array: array.reshape(order.size, *array.shape[2:])[order], data)
    minibatches = jax.tree.map(lambda array: array.reshape(args.minibatches, -1, *array.shape[1:]), shuffled)
    return jax.lax.scan(learn, state, minibatches)


def update(state, _):
    agent, optimizer, observation, key = state
    (key, observation), rollout = jax.lax.scan(partial(act, agent), (key, observation), None, args.rollout_steps)
    _, value = forward(agent, observation)
    _, advantages = jax.lax.scan(advantage, (jnp.zeros_like(value), value), rollout, reverse=True)
    key, shuffling = jax.random.split(key)
    keys = jax.random.split(shuffling, args.epochs)
    (agent, optimizer), losses = jax.lax.scan(partial(epoch, (rollout, advantages)), (agent, optimizer), keys)
    return (agent, optimizer, observation, key), (losses[-1, -1], rollout.done.mean())


@jax.jit
def train(key):
    key, agent_key, reset_key = jax.random.split(key, 3)
    agent = new_agent(agent_key)
    zeros = jax.tree.map(jnp.zeros_like, agent)
    observation = jax.vmap(reset)(jax.random.split(reset_key, args.environments))
    state = agent, Adam(zeros, zeros, jnp.zeros((), jnp.int32)), observation, key
    return jax.lax.scan(update, state, None, args.updates)


(agent, *_), (losses, ended) = train(jax.random.key(args.seed))

# --- result ---------------------------------------------------------------------------------------

for number in range(0, args.updates, max(args.updates // 5, 1)):
    print(f"update {number:3}  loss {losses[number]:+.6f}  episodes of {1 / max(ended[number], 1e-3):.0f} steps")
digest = hashlib.sha256()
for weight in jax.tree.leaves(agent):
    digest.update(weight.tobytes())
print(f"final weights {digest.hexdigest()[:16]}")
