"""Writes a checkpoint of a tiny random Qwen3, two layers wide 64, in bfloat16, with a tokenizer whose words are
numbers: ``python checkpoint.py FOLDER``."""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(0)
model = Qwen3ForCausalLM(
    Qwen3Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
).to(torch.bfloat16)
for parameter in model.parameters():
    if parameter.dim() > 1:
        torch.nn.init.normal_(parameter, std=0.3)
model.save_pretrained(sys.argv[1])
words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(256)}, unk_token="t3"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
named = {"bos_token": "t0", "eos_token": "t1", "pad_token": "t2", "unk_token": "t3"}
PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(sys.argv[1])
