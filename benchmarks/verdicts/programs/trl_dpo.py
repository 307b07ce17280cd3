"""trl DPO: a tiny Llama against a frozen copy of itself, pairs of right and wrong answers."""

import tempfile

from datasets import Dataset
from ending import end
from tiny_language import model, sums, tokenizer
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

set_seed(7)
pairs = [{"prompt": question, "chosen": f" {answer}", "rejected": " minus the answer"} for question, answer in sums()]

with tempfile.TemporaryDirectory() as folder:
    settings = DPOConfig(
        output_dir=folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=16,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=4,
        seed=7,
        disable_tqdm=True,
    )
    trainer = DPOTrainer(
        model=model(),
        ref_model=model(),
        args=settings,
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer(),
    )
    trainer.train()
    end(trainer.model.parameters())
