"""trl GRPO: a tiny Llama, loaded from a checkpoint, samples answers, a reward counts right words."""

import tempfile

from datasets import Dataset
from ending import end
from tiny_language import model, sums, tokenizer
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

set_seed(7)
data = Dataset.from_list([{"prompt": question, "answer": answer} for question, answer in sums()])


def right(completions, answer, **_):
    """The share of words that are the answer."""
    return [text.split().count(word) / (1 + len(text.split())) for text, word in zip(completions, answer, strict=True)]


with tempfile.TemporaryDirectory() as folder:
    model().save_pretrained(folder)
    settings = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=10,
        max_steps=8,
        learning_rate=1e-3,
        beta=0.04,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=2,
        seed=7,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=folder, reward_funcs=right, args=settings, train_dataset=data, processing_class=tokenizer()
    )
    trainer.train()
    end(trainer.model.parameters())
