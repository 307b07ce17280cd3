"""trl DPO with two workers that load and collate its pairs."""

import os
import tempfile

from datasets import Dataset
from ending import end
from tiny_language import model, sums, tokenizer
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

PLANT = os.environ.get("PLANT")

if __name__ == "__main__":
    set_seed(7)
    pairs = [
        {"prompt": question, "chosen": f" {answer}", "rejected": " minus the answer"} for question, answer in sums()
    ]
    if PLANT == "worker":
        pairs[3]["chosen"] += pairs[3]["chosen"]
    with tempfile.TemporaryDirectory() as folder:
        settings = DPOConfig(
            output_dir=folder,
            per_device_train_batch_size=4,
            max_steps=8,
            learning_rate=1e-3,
            beta=0.2 if PLANT == "learner" else 0.1,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            logging_steps=4,
            dataloader_num_workers=2,
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
