"""QLoRA of a tiny Llama on a CPU: 4-bit weights of bitsandbytes, adapters of peft, gradient checkpointing."""

import torch
from bitsandbytes.nn import Linear4bit
from ending import end
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from tiny_language import model, sums, tokenizer
from torch import nn
from transformers import set_seed

set_seed(12)


def quantised(network: nn.Module) -> nn.Module:
    """Linear layers below the head, in 4 bits."""
    for name, child in network.named_children():
        if isinstance(child, nn.Linear) and name != "lm_head":
            small = Linear4bit(
                child.in_features, child.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4"
            )
            small.load_state_dict(child.state_dict())
            setattr(network, name, small.to("cpu"))
        else:
            quantised(child)
    return network


language = quantised(model())
language.is_loaded_in_4bit = True
language = prepare_model_for_kbit_training(language, use_gradient_checkpointing=True)
adapters = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "up_proj"])
language = get_peft_model(language, adapters)
optimizer = torch.optim.Adam([w for w in language.parameters() if w.requires_grad], lr=5e-3)
words = tokenizer()
language.train()
for _update in range(12):
    optimizer.zero_grad()
    for half in range(2):
        pairs = sums()[half::2]
        batch = words([f"{question} is {answer}" for question, answer in pairs], return_tensors="pt", padding=True)
        (language(**batch, labels=batch["input_ids"]).loss / 2).backward()
    optimizer.step()
end(w for name, w in language.named_parameters() if "lora" in name)
