"""A language model and a tokenizer small enough to be made on the spot: nothing is downloaded."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
WORDS += ["plus", "minus", "is", "what", "the", "sum", "of", "answer"]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(special + WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side="left",
    )


def model() -> LlamaForCausalLM:
    """A Llama of two layers, 32 wide."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4 + len(WORDS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        )
    )


def sums() -> list[tuple[str, str]]:
    """Questions and their answers."""
    digits = WORDS[:10]
    return [(f"what is {digits[a]} plus {digits[b]}", digits[a + b]) for a in range(5) for b in range(5)]
