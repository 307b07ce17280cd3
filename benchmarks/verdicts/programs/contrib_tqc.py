"""sb3-contrib TQC on Pendulum: quantiles of several critics, sorted and truncated."""

from ending import end
from sb3_contrib import TQC

agent = TQC("MlpPolicy", "Pendulum-v1", learning_starts=64, batch_size=64, buffer_size=512, seed=3, device="cpu")
agent.learn(200)
end(agent.policy.state_dict().values())
