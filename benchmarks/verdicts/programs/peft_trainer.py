"""transformers Trainer with a peft LoRA adapter: a tiny Llama, dropout, a warm-up, a checkpoint loaded at the end."""

import tempfile
from pathlib import Path

import torch
from ending import end
from peft import LoraConfig, get_peft_model
from tiny_language import model, sums, tokenizer
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed

set_seed(7)
words = tokenizer()


class Sums(Dataset):
    """One sum an item."""

    def __init__(self) -> None:
        self.items = [words(f"{question} answer {answer}") for question, answer in sums()]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> dict:
        return dict(self.items[place])


adapted = get_peft_model(model(), LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"]))
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=30,
        warmup_steps=5,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_steps=10,
        logging_steps=5,
        seed=7,
        disable_tqdm=True,
    )
    collator = DataCollatorForLanguageModeling(words, mlm=False)
    Trainer(model=adapted, args=settings, train_dataset=Sums(), data_collator=collator).train()
    trainer = Trainer(model=adapted, args=settings, train_dataset=Sums(), data_collator=collator)
    trainer.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-20"))
    with torch.no_grad():
        end(adapted.state_dict().values())
