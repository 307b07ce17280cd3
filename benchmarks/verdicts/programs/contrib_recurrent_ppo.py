"""sb3-contrib RecurrentPPO on CartPole: an LSTM policy, sequences padded and masked."""

from ending import end
from sb3_contrib import RecurrentPPO

agent = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=3, seed=3, device="cpu")
agent.learn(256)
end(agent.policy.state_dict().values())
